"""MS-CNN and Cascade R-CNN."""
