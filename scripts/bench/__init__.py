"""How fast the gateway is, beside an empty proxy (the limit) and a gateway that renders and encodes the chat again."""
