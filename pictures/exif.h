/* The one thing that a picture's EXIF data are read for: which way is up. */
#ifndef PICTURES_EXIF_H
#define PICTURES_EXIF_H

#include <stddef.h>
#include <stdint.h>

/* The orientation, 1 to 8, in EXIF data as they begin at their TIFF header. 1 where there is none,
 * or the data are damaged: cameras write much of that, and the picture is none the worse. */
int exif_orientation(const uint8_t *tiff, size_t size);

#endif
