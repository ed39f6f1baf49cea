/* opened LIBRARY: a host that opens the library by name, with its symbols local. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef int (*on_text_t)(const char *, size_t, void *);

static int on_text(const char *utf8, size_t n, void *user)
{
    (void)user;
    return fwrite(utf8, 1, n, stdout) != n;
}

int main(int argc, char **argv)
{
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!library) return puts(dlerror()), 1;
    long (*start)(int, const char *), (*generate)(void *, const char *, on_text_t, void *);
    long (*read)(void *, const char *, size_t, void *, void *);
    void *(*open)(const char *, const char *, void *, void *), *(*make)(void *, const char *);
    const char *(*error)(void);
    *(void **)&start = dlsym(library, "kvarn_start_api");
    *(void **)&open = dlsym(library, "kvarn_model_open");
    *(void **)&make = dlsym(library, "kvarn_context_new");
    *(void **)&read = dlsym(library, "kvarn_read");
    *(void **)&generate = dlsym(library, "kvarn_generate");
    *(void **)&error = dlsym(library, "kvarn_error");
    if (start(1, NULL) < 0) return puts(error()), 1;
    void *model = open(argc > 2 ? argv[2] : NULL, NULL, NULL, NULL);
    void *context = model ? make(model, "{\"ctx\": 64}") : NULL;
    if (!context || read(context, "The old", 7, NULL, NULL) < 0) return puts(error()), 1;
    if (generate(context, "{\"max_tokens\": 4, \"temp\": 0}", on_text, NULL) < 0)
        return puts(error()), 1;
    return 0;
}
