"""Drawing of figures: marks on a canvas, written as SVG for pages, and as SVG, PDF and PNG for papers.

colours   the colour of each role, light and dark; other files use the names of roles
canvas    lines, areas, dots and text in pixels, and their SVG
frame     two axes, their ticks, and positions of values
charts    the figures that several questions share: lines over training, bars, heat maps
paper     the same marks as PDF and PNG
"""
