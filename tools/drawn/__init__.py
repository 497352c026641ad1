"""Parts that `tools.draw_modules` draws modules of torch from."""
