/* A C program for the tests: probe WHAT ARGUMENTS… prints what it found, one fact a line. */
#define _GNU_SOURCE
#include <kvarn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define GREEDY "{\"max_tokens\": 12, \"temp\": 0}"
#define PROMPT "The old mill stood by the river, and"

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static long rss(void)
{
    long size, pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld %ld", &size, &pages) != 2) abort();
    fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static void said(const char *what, long result)
{
    printf("%s %ld %s\n", what, result, result < 0 ? kvarn_error() : "");
}

static void *checked(void *handle)
{
    if (!handle) printf("failed: %s\n", kvarn_error()), fflush(stdout), _exit(3);
    return handle;
}

static long checked_status(long result)
{
    if (result < 1) printf("failed: %ld %s\n", result, kvarn_error()), fflush(stdout), _exit(3);
    return result;
}

static void *context_of(void *model)
{
    return checked(kvarn_context_new(model, "{\"ctx\": 256}"));
}

struct text { char bytes[4096]; size_t n; };

static int on_text(const char *utf8, size_t n, void *user)
{
    struct text *text = user;
    if (text->n + n < sizeof text->bytes) memcpy(text->bytes + text->n, utf8, n), text->n += n;
    return 0;
}

static void generate(void *context, struct text *text)
{
    memset(text, 0, sizeof *text);
    checked_status(kvarn_truncate(context, 0));
    checked_status(kvarn_read(context, PROMPT, strlen(PROMPT), NULL, NULL));
    checked_status(kvarn_generate(context, GREEDY, on_text, text));
}

/* threads MODEL N: 4 threads with 4 contexts each; do they get the text that one thread gets? */
static struct text expected;
static int rounds, wrong;
static void *worker(void *model)
{
    void *contexts[4];
    struct text text;
    for (int i = 0; i < 4; i++) contexts[i] = context_of(model);
    for (int i = 0; i < rounds; i++) {
        generate(contexts[i % 4], &text);
        if (strcmp(text.bytes, expected.bytes)) __sync_fetch_and_add(&wrong, 1);
    }
    for (int i = 0; i < 4; i++) checked_status(kvarn_context_free(contexts[i]));
    return NULL;
}

static int threads(void *model, int n)
{
    pthread_t thread[4];
    void *context = context_of(model);
    generate(context, &expected);
    rounds = n;
    for (int i = 0; i < 4; i++) pthread_create(&thread[i], NULL, worker, model);
    for (int i = 0; i < 4; i++) pthread_join(thread[i], NULL);
    printf("wrong %d\nlength %zu\n", wrong, expected.n);
    return 0;
}

/* memory MODEL N M: N contexts, then M models; KiB that the process grew after the tenth. */
static int memory(const char *path, int n, int m)
{
    struct text text;
    long before = 0;
    void *model = checked(kvarn_model_open(path, NULL, NULL, NULL));
    for (int i = 0; i < n; i++) {
        void *context = context_of(model);
        generate(context, &text);
        checked_status(kvarn_context_free(context));
        if (i == 9) before = rss();
    }
    printf("contexts %ld\n", rss() - before);
    for (int i = 0; i < m; i++) {
        void *other = checked(kvarn_model_open(path, NULL, NULL, NULL));
        void *context = context_of(other);
        generate(context, &text);
        checked_status(kvarn_context_free(context));
        checked_status(kvarn_model_free(other));
        if (i == 9) before = rss();
    }
    printf("models %ld\n", rss() - before);
    return 0;
}

/* leave MODEL: main returns while two threads generate. */
static int begun;
static int on_text_begun(const char *utf8, size_t n, void *user)
{
    (void)utf8, (void)n, (void)user;
    __sync_fetch_and_add(&begun, 1);
    return 0;
}

static void *forever(void *model)
{
    void *context = checked(kvarn_context_new(model, "{\"ctx\": 100000}"));
    checked_status(kvarn_read(context, PROMPT, strlen(PROMPT), NULL, NULL));
    kvarn_generate(context, "{\"logit_bias\": {\"0\": -1}}", on_text_begun, NULL);
    return NULL;
}

static int leave(void *model)
{
    pthread_t thread[2];
    for (int i = 0; i < 2; i++) pthread_create(&thread[i], NULL, forever, model);
    while (begun < 20) usleep(1000);
    return 0;
}

/* cancel MODEL N OPTIONS MS: reads N ids, cancelled in the second chunk after MS ms, then reads the
   rest; are the logits those of a context that read all at once? */
static void *read_context;
static int32_t *read_ids;
static size_t n_ids;
static volatile int is_in_second;
static double ended;
static int on_progress(long done, long total, void *user)
{
    (void)total, (void)user;
    if (done == 512) is_in_second = 1;
    return 0;
}

static void *reader(void *unused)
{
    (void)unused;
    long result = kvarn_read_ids(read_context, read_ids, n_ids, on_progress, NULL);
    ended = now();
    said("read", result);
    return NULL;
}

static int by_time(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static long n_held(void *context)
{
    char json[8192];
    long held;
    checked_status(kvarn_context_info(context, json, sizeof json));
    if (sscanf(json, "{\"tokens\": %ld", &held) != 1) abort();
    return held;
}

static int cancel(void *model, size_t n, const char *options, int ms)
{
    pthread_t thread;
    char words[800] = "";
    double took[2000], begin;
    int count = 0;
    n_ids = n, read_ids = malloc(n * sizeof *read_ids);
    for (size_t i = 0; i < n; i++) read_ids[i] = (int32_t)(20 + i * 7919 % 200);
    for (int i = 0; i < 100; i++) strcat(words, "miller ");
    void *whole = checked(kvarn_context_new(model, options));
    checked_status(kvarn_read_ids(whole, read_ids, n, NULL, NULL));
    long n_vocab = checked_status(kvarn_logits(whole, NULL, 0));
    float *expected_logits = malloc(sizeof(float) * (size_t)n_vocab);
    float *logits = malloc(sizeof(float) * (size_t)n_vocab);
    checked_status(kvarn_logits(whole, expected_logits, (size_t)n_vocab));
    read_context = checked(kvarn_context_new(model, options));
    pthread_create(&thread, NULL, reader, NULL);
    while (!is_in_second) usleep(200);
    for (double end = now() + ms * 1e-3; now() < end || !count;) {
        begin = now();
        checked_status(kvarn_tokenize(model, words, strlen(words), 0, NULL, 0));
        if (count < 2000) took[count++] = now() - begin;
    }
    begin = now();
    long result = kvarn_cancel(read_context);
    double returned = now();
    pthread_join(thread, NULL);
    said("cancel", result);
    printf("cancel_ms %.3f\nended_ms %.1f\n", (returned - begin) * 1e3, (ended - begin) * 1e3);
    qsort(took, (size_t)count, sizeof *took, by_time);
    printf("tokenize_ms %.1f of %d\n", took[count * 99 / 100] * 1e3, count);
    size_t held = (size_t)n_held(read_context);
    printf("held %zu\n", held);
    checked_status(kvarn_read_ids(read_context, read_ids + held, n - held, NULL, NULL));
    checked_status(kvarn_logits(read_context, logits, (size_t)n_vocab));
    printf("equal %d\n", !memcmp(logits, expected_logits, sizeof(float) * (size_t)n_vocab));
    return 0;
}

/* order: the process before its start and after its stop, and a start of another kind. */
static int order(const char *other_home)
{
    said("early", kvarn_tokenize(NULL, "a", 1, 0, NULL, 0));
    printf("early_model %d %s\n", kvarn_model_open(NULL, NULL, NULL, NULL) == NULL, kvarn_error());
    said("early_stop", kvarn_stop());
    said("api", kvarn_start_api(KVARN_API + 1, NULL));
    said("no_home", kvarn_start("/nowhere"));
    said("start", kvarn_start(NULL));
    said("again", kvarn_start(NULL));
    said("other", kvarn_start(other_home));
    void *model = checked(kvarn_model_open(NULL, NULL, NULL, NULL));
    void *context = context_of(model);
    said("stop", kvarn_stop());
    said("late", kvarn_read(context, "a", 1, NULL, NULL));
    said("late_free", kvarn_context_free(context));
    said("late_start", kvarn_start(NULL));
    return 0;
}

/* inside MODEL: which calls a callback may make, and what stopping by one gives. */
static void *inside_model, *inside_context;
static int on_text_inside(const char *utf8, size_t n, void *user)
{
    (void)utf8, (void)n;
    said("generate", kvarn_generate(inside_context, GREEDY, on_text_inside, NULL));
    said("stop", kvarn_stop());
    said("info", kvarn_model_info(inside_model, NULL, 0));
    said("tokenize", kvarn_tokenize(inside_model, "a", 1, 0, NULL, 0));
    if (user) said("cancel", kvarn_cancel(inside_context));
    return !user;
}

static void *second(void *unused)
{
    (void)unused;
    said("second", kvarn_truncate(inside_context, 0));
    return NULL;
}

static int on_text_other_thread(const char *utf8, size_t n, void *user)
{
    pthread_t thread;
    (void)utf8, (void)n, (void)user;
    pthread_create(&thread, NULL, second, NULL);
    pthread_join(thread, NULL);
    return 1;
}

static int inside(void *model)
{
    inside_model = model, inside_context = context_of(model);
    checked_status(kvarn_read(inside_context, PROMPT, strlen(PROMPT), NULL, NULL));
    said("stopped", kvarn_generate(inside_context, GREEDY, on_text_inside, NULL));
    said("cancelled", kvarn_generate(inside_context, GREEDY, on_text_inside, model));
    said("other", kvarn_generate(inside_context, GREEDY, on_text_other_thread, NULL));
    struct text text;
    generate(inside_context, &text);
    printf("after %zu\n", text.n);
    return 0;
}

int main(int argc, char **argv)
{
    const char *what = argv[1], *path = argc > 2 ? argv[2] : NULL;
    if (!strcmp(what, "order")) return order(path);
    checked_status(kvarn_start(NULL));
    if (!strcmp(what, "memory")) return memory(path, atoi(argv[3]), atoi(argv[4]));
    void *model = checked(kvarn_model_open(*path ? path : NULL, NULL, NULL, NULL));
    if (!strcmp(what, "threads")) return threads(model, atoi(argv[3]));
    if (!strcmp(what, "leave")) return leave(model);
    if (!strcmp(what, "inside")) return inside(model);
    if (!strcmp(what, "cancel")) return cancel(model, (size_t)atol(argv[3]), argv[4], atoi(argv[5]));
    return 2;
}
