/* SPDX-License-Identifier: BSD-3-Clause */
/* replay.c - runs a fuzz target over files: the corpora are tests in every build. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

static int replay(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0)
        return perror(path), 1;
    long size = ftell(file);
    rewind(file);
    uint8_t *bytes = malloc(size > 0 ? (size_t)size : 1); /* exact: detects an over-read of one byte */
    if (size < 0 || bytes == NULL || fread(bytes, 1, (size_t)size, file) != (size_t)size)
        return perror(path), 1;
    fclose(file);
    LLVMFuzzerTestOneInput(bytes, (size_t)size);
    free(bytes);
    return 0;
}

int main(int argc, char **argv)
{
    int failed = argc < 2;
    for (int i = 1; i < argc && failed == 0; i++)
        failed = replay(argv[i]);
    printf("%d files replayed\n", argc - 1);
    return failed;
}
