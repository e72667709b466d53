"""The flags that the stand-in's driver takes."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hf-checkpoint", type=str)
    parser.add_argument("--rollout-function-path", type=str)
    parser.add_argument("--custom-rm-path", type=str)
    parser.add_argument("--custom-reward-post-process-path", type=str)
    parser.add_argument("--custom-config-path", type=str)
    parser.add_argument("--prompt-data", type=str)
    parser.add_argument("--input-key", type=str)
    parser.add_argument("--metadata-key", type=str)
    parser.add_argument("--num-rollout", type=int)
    parser.add_argument("--rollout-batch-size", type=int)
    parser.add_argument("--n-samples-per-prompt", type=int)
    parser.add_argument("--colocate", action="store_true")
