#include "fatbin.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define FATBIN 0xba55ed50u
enum { WRAPPER = 0x466243b1, PTX = 1, PACKED = 0x2000 };

typedef struct {
    uint32_t magic, version;
    const void *image;
} Wrapper;

typedef struct {
    uint32_t magic;
    uint16_t version, header_size;
    uint64_t size;
} Header;

typedef struct {
    uint16_t kind, version;
    uint32_t header_size;
    uint64_t size;
    uint32_t packed_size, unused[5];
    uint64_t flags, unused_too, full_size;
} Part;

static size_t length(const unsigned char **at, size_t begun) {
    size_t size = begun;
    if (begun == 15)
        do size += **at;
        while (*(*at)++ == 255);
    return size;
}

/* LZ4's block format: literals, then a copy of what is already there, and so on. */
static void unpack(const unsigned char *from, size_t packed, char *to, size_t full) {
    const unsigned char *end = from + packed;
    char *at = to;
    while (from < end) {
        unsigned token = *from++;
        size_t literals = length(&from, token >> 4);
        if (literals > (size_t)(to + full - at)) return;
        memcpy(at, from, literals);
        at += literals, from += literals;
        if (from >= end) return;
        size_t distance = from[0] | (size_t)from[1] << 8;
        from += 2;
        size_t copied = length(&from, token & 15) + 4;
        if (distance > (size_t)(at - to) || copied > (size_t)(to + full - at)) return;
        for (; copied; copied--, at++) *at = at[-(long)distance];
    }
}

char *ptx_of_image(const void *image) {
    const char *text = image;
    if (!strncmp(text, "//", 2) || !strncmp(text, ".version", 8)) return strdup(text);
    if (*(const uint32_t *)image == WRAPPER) image = ((const Wrapper *)image)->image;
    const Header *header = image;
    if (header->magic != FATBIN) return NULL;
    const char *at = (const char *)image + header->header_size, *end = at + header->size;
    while (at + sizeof(Part) <= end) {
        const Part *part = (const Part *)at;
        if (part->kind == PTX) {
            size_t full = part->flags & PACKED ? part->full_size : part->size;
            char *ptx = calloc(1, full + 1);
            if (part->flags & PACKED) unpack((const unsigned char *)at + part->header_size, part->packed_size, ptx, full);
            else memcpy(ptx, at + part->header_size, full);
            return ptx;
        }
        at += part->header_size + part->size;
    }
    return NULL;
}
