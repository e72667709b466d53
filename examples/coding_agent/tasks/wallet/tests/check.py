from wallet import Wallet

full = Wallet(5)
full.pay(5)
assert full.coins == 0
for coins, price in ((5, 6), (5, -1), (0, 1)):
    wallet = Wallet(coins)
    try:
        wallet.pay(price)
    except ValueError:
        assert wallet.coins == coins
    else:
        raise AssertionError(f"Wallet({coins}).pay({price}) was not refused")
