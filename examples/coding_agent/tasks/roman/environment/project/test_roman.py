import unittest

from roman import roman


class RomanTest(unittest.TestCase):
    def test_small_numbers(self):
        self.assertEqual([roman(n) for n in (1, 3, 5, 9)], ["I", "III", "V", "IX"])
