"""Numbers in Roman numerals."""

PARTS = (
    (1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"),
    (50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (1, "I"),
)  # fmt: skip


def roman(number: int) -> str:
    text = ""
    for value, sign in PARTS:
        while number >= value:
            text += sign
            number -= value
    return text
