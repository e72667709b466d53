"""Model listings: always the policy, under whatever name an agent asks for."""

from __future__ import annotations

BORN = "1970-01-01T00:00:00Z"


class Models:
    """Model lists and cards in OpenAI's or Anthropic's shape. model: the name that a list shows."""

    def __init__(self, model: str) -> None:
        self._model = model

    def list(self, *, anthropic: bool) -> dict[str, object]:
        cards = [self.card(self._model, anthropic=anthropic)]
        if anthropic:
            return {"data": cards, "has_more": False, "first_id": self._model, "last_id": self._model}
        return {"object": "list", "data": cards}

    def card(self, name: str, *, anthropic: bool) -> dict[str, object]:
        """Describe a model. Every name means the policy, as in requests for turns."""
        if anthropic:
            return {"type": "model", "id": name, "display_name": name, "created_at": BORN}
        return {"id": name, "object": "model", "created": 0, "owned_by": "slime_agl"}
