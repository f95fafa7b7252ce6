"""Drawing of figures: marks on a canvas, written as SVG for pages, and as SVG, PDF and PNG for papers.

colours   every role's colour, light and dark, one for each arm; the only place that names any
canvas    lines, areas, dots and text in pixels, and their SVG
frame     two axes, their ticks, and where a value lies
charts    the figures that several questions share: lines over training, bars, heat maps
paper     the same marks as PDF and PNG
"""
