# SANDBOX_ROOT is set where a sandbox has no file system of its own.
cd "${SANDBOX_ROOT:-}/app" || exit 1
if PYTHONPATH=. PYTHONDONTWRITEBYTECODE=1 python3 "${SANDBOX_ROOT:-}/tests/check.py"; then reward=1; else reward=0; fi
echo "$reward" > "${SANDBOX_ROOT:-}/logs/verifier/reward.txt"
