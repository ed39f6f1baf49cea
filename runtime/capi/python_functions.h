/* The functions written in Python (entry.py). Handles are numbers; results are as in kvarn.h. */

static long py_begin(int is_own);
static long py_end(void);
static long py_model_open(const char *path, const char *options, kvarn_on_progress f, void *user);
static long py_model_free(uint64_t model);
static long py_model_info(uint64_t model, char *json, size_t room);
static long py_tokenize(uint64_t model, const char *text, size_t n, int flags, int32_t *ids,
    size_t room);
static long py_detokenize(uint64_t model, const int32_t *ids, size_t n, int flags, char *text,
    size_t room);
static long py_context_new(uint64_t model, const char *options);
static long py_context_free(uint64_t context);
static long py_context_info(uint64_t context, char *json, size_t room);
static long py_read(uint64_t context, const char *text, size_t n, kvarn_on_progress f, void *user);
static long py_read_ids(uint64_t context, const int32_t *ids, size_t n, kvarn_on_progress f,
    void *user);
static long py_truncate(uint64_t context, size_t n);
static long py_save(uint64_t context);
static long py_logits(uint64_t context, float *logits, size_t room);
static long py_generate(uint64_t context, const char *options, kvarn_on_text f, void *user);
static long py_chat(uint64_t context, const char *messages, const char *options, kvarn_on_text f,
    void *user);
static long py_pack_build(uint64_t model, const char *name, const char *text, size_t n,
    const char *options, kvarn_on_progress f, void *user);
static long py_pack_info(const char *name, char *json, size_t room);
