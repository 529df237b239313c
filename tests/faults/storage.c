/* Loaded before the C library: writes to files whose path has $FAULT_PATH fail with error $FAULT_ERRNO, $FAULT_TIMES of them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static atomic_int failed;

static int fails(int file) {
    const char *path = getenv("FAULT_PATH"), *error = getenv("FAULT_ERRNO"), *times = getenv("FAULT_TIMES");
    char link[64], found[PATH_MAX + 1];
    if (!path || !error || !times) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, found, PATH_MAX);
    if (length < 0) return 0;
    found[length] = 0;
    if (!strstr(found, path) || atomic_fetch_add(&failed, 1) >= atoi(times)) return 0;
    errno = atoi(error);
    return 1;
}

ssize_t write(int file, const void *bytes, size_t count) {
    static ssize_t (*next)(int, const void *, size_t);
    if (!next) next = (ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    return fails(file) ? -1 : next(file, bytes, count);
}
