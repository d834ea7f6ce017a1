"""Build of a program's image, run by its Dockerfile in an image with Python and pip.

A whole Debian below a program is 100 MB of unused files, with new findings of scanners every week.
This package takes Python, its standard library, the shared libraries that the dynamic linker names,
and the certificates of authorities out of that image, and adds the program with its packages. The
result is then tested: the program must import there everything that it imports in a full image.

``python3 -m tools.images PACKAGE`` creates two folders, which are a layer each: ``/image/runtime``,
and ``/image/program`` on top of it. Only the standard library is used here.
"""
