cat > slugs.py <<'END'
import re


def slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
END
rm old_slugs.py
