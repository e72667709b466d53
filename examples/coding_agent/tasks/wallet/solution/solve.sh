sed -i 's/price >= self.coins/price > self.coins/' wallet.py
