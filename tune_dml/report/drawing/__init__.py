"""How the report draws: marks on a canvas, laid out once, written as SVG for the page and as SVG, PDF and PNG for a paper.

colours   every role's colour, light and dark, one for each arm; the only place that names any
canvas    lines, areas, dots and text in pixels, and their SVG
frame     two axes, their ticks, and where a value lies
charts    the figures that several questions share: lines over training, bars, heat maps
paper     the same marks as PDF and PNG
"""
