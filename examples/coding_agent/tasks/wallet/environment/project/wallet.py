"""A wallet that holds whole coins."""


class Wallet:
    def __init__(self, coins: int = 0) -> None:
        self.coins = coins

    def pay(self, price: int) -> None:
        """Raises ValueError if the wallet does not hold that much."""
        if price < 0 or price >= self.coins:
            raise ValueError(f"cannot pay {price} of {self.coins}")
        self.coins -= price
