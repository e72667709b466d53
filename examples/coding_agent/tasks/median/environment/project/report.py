from median import median

print("median", median([4, 1, 3, 2]))
