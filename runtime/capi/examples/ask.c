/* Reads a document once, then answers questions about it, each after the document.

   ask MODEL.gguf PACK DOCUMENT QUESTION…
   MODEL "" is the default model; PACK is the name of a pack, or a path with a slash. */
#include <kvarn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failed(void) { return fprintf(stderr, "ask: %s\n", kvarn_error()), 1; }

static int on_text(const char *utf8, size_t n, void *user)
{
    (void)user;
    fwrite(utf8, 1, n, stdout);
    return fflush(stdout);
}

static int on_progress(long done, long total, void *user)
{
    (void)user;
    fprintf(stderr, "\rread %ld of %ld tokens", done, total);
    return 0;
}

static char *contents(const char *path, size_t *n)
{
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) return NULL;
    *n = (size_t)ftell(file);
    rewind(file);
    char *text = malloc(*n + 1);
    if (text && fread(text, 1, *n, file) != *n) return NULL;
    fclose(file);
    return text;
}

/* Text as a JSON string. */
static char *quoted(const char *text)
{
    char *json = malloc(6 * strlen(text) + 3), *end = json;
    if (!json) abort();
    *end++ = '"';
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 0x20 || c == '"' || c == '\\') end += sprintf(end, "\\u%04x", c);
        else *end++ = (char)c;
    }
    memcpy(end, "\"", 2);
    return json;
}

int main(int argc, char **argv)
{
    if (argc < 5) return fprintf(stderr, "ask MODEL PACK DOCUMENT QUESTION…\n"), 2;
    size_t n;
    char *document = contents(argv[3], &n);
    if (!document) return perror(argv[3]), 1;
    if (kvarn_start(NULL) < 0) return failed();
    void *model = kvarn_model_open(*argv[1] ? argv[1] : NULL, NULL, NULL, NULL);
    if (!model) return failed();
    /* Does nothing where the pack is complete. */
    if (kvarn_pack_build(model, argv[2], document, n, NULL, on_progress, NULL) < 0) return failed();
    free(document);
    char *name = quoted(argv[2]), *options = malloc(strlen(name) + 16);
    if (!options) abort();
    sprintf(options, "{\"pack\": %s}", name);
    void *context = kvarn_context_new(model, options);
    if (!context) return failed();
    for (int i = 4; i < argc; i++) {
        char *question = quoted(argv[i]), *messages = malloc(strlen(question) + 48);
        if (!messages) abort();
        sprintf(messages, "[{\"role\": \"user\", \"content\": %s}]", question);
        printf("\n> %s\n", argv[i]);
        if (kvarn_chat(context, messages, "{\"max_tokens\": 64}", on_text, NULL) < 0)
            return failed();
        free(question);
        free(messages);
    }
    free(name);
    free(options);
    printf("\n");
    return kvarn_stop() < 0 ? failed() : 0;
}
