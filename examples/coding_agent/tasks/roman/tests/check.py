from roman import roman

assert roman(4) == "IV", roman(4)
assert roman(14) == "XIV" and roman(1994) == "MCMXCIV" and roman(3999) == "MMMCMXCIX"
assert len({roman(n) for n in range(1, 4000)}) == 3999
