/* Continues a text. hello [MODEL.gguf] [TEXT]

   cc hello.c -o hello $(python -m kvarn.runtime.capi --cflags) $(python -m kvarn.runtime.capi --libs) */
#include <kvarn.h>
#include <stdio.h>
#include <string.h>

static int on_text(const char *utf8, size_t n, void *user)
{
    (void)user;
    fwrite(utf8, 1, n, stdout);
    return fflush(stdout); /* other than 0 stops */
}

static int failed(void) { return fprintf(stderr, "hello: %s\n", kvarn_error()), 1; }

int main(int argc, char **argv)
{
    const char *path = argc > 1 && *argv[1] ? argv[1] : NULL; /* NULL: the default model */
    const char *text = argc > 2 ? argv[2] : "It was a bright cold morning, and";
    if (kvarn_start(NULL) < 0) return failed();
    void *model = kvarn_model_open(path, NULL, NULL, NULL);
    if (!model) return failed();
    void *context = kvarn_context_new(model, "{\"ctx\": 1024}");
    if (!context) return failed();
    if (kvarn_read(context, text, strlen(text), NULL, NULL) < 0) return failed();
    long made = kvarn_generate(context, "{\"max_tokens\": 32, \"temp\": 0}", on_text, NULL);
    if (made < 0) return failed();
    fprintf(stderr, "\n[%ld tokens]\n", made - 1);
    return kvarn_stop() < 0 ? failed() : 0;
}
