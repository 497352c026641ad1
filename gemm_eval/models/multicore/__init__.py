"""Cost model 1: multi-core chips with explicit SRAM. MODEL.md beside this file defines every term."""
