"""Pictures of models as SVG: `layers` places boxes, `columns` and `charts` draw, `picture` joins them."""
