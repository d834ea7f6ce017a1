"""What the image of a program is made of: run by its Dockerfile, in an image with Python and pip.

A whole Debian below a program is 100 MB that nothing of it uses, and that a scanner has something
to say about every week. Here Python, its standard library, the shared libraries that the dynamic
linker names and the certificates of authorities are taken out of that image, and the program with
its packages beside them: all that is there in the end. What was left out of it is then tried: the
program has to import there what it imports where nothing is missing.

``python3 -m images PACKAGE`` makes two folders, which are a layer each: ``/image/runtime``, and
``/image/program`` to lie above it. Only the standard library is used here.
"""
