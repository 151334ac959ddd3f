/* The PTX in an image that a program hands to the driver: the text itself, or a "fat binary" that has
 * it beside machine code for several cards, packed. */
#pragma once

/* A new string, which the caller keeps; NULL where the image has machine code only. */
char *ptx_of_image(const void *image);
