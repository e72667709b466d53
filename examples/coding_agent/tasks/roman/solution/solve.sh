sed -i 's/(5, "V"), (1, "I")/(5, "V"), (4, "IV"), (1, "I")/' roman.py
