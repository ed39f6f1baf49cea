/* kvarn for C and for what can call C: models in GGUF files, contexts, text. See docs/guides/embedding.md.

   Results     A status is 1 or more, or one of the negative codes below; a handle is not NULL, or
               NULL. Then kvarn_error() says in one line what went wrong. 0 is never returned.
   Buffers     The caller owns them. A function that fills one returns the size that it needs (for
               text in bytes, with a NUL; for ids with a -1 at the end) and writes nothing where
               `room` is less, so a call with NULL and 0 asks for the size.
   Options     One JSON object as text; NULL is {}.
   Texts       UTF-8; `n` counts bytes.
   Threads     Any thread may call. One call at a time uses a context: a second one gets KVARN_BUSY.
   Callbacks   Run on the thread of the call that got them (but see kvarn_on_log). Their arguments
               are valid until they return. Returning other than 0 stops the call. Inside one, only
               kvarn_cancel, kvarn_error, kvarn_tokenize and kvarn_detokenize may be called.
   Process     No signal handler, no output, no change of the locale, no exit. */

#ifndef KVARN_H
#define KVARN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KVARN_API 1

#define KVARN_ERROR (-1)        /* kvarn_error() says why */
#define KVARN_BUSY (-2)         /* in use by another call, or called inside a callback */
#define KVARN_CANCELLED (-3)    /* by kvarn_cancel, or by a callback */
#define KVARN_NOT_RUNNING (-4)  /* before kvarn_start, after kvarn_stop, at the end of main */
#define KVARN_BAD_ARGUMENT (-5) /* a mistake of the program that calls */

#define KVARN_BOS 1     /* kvarn_tokenize: begin with the token that begins a text */
#define KVARN_SPECIAL 2 /* kvarn_tokenize: recognise control tokens that are written out;
                           kvarn_detokenize: write them out */

typedef int (*kvarn_on_text)(const char *utf8, size_t n, void *user);
typedef int (*kvarn_on_progress)(long done, long total, void *user);
typedef void (*kvarn_on_line)(const char *line, void *user);

/* The process. `home` is a Python installation; NULL: $KVARN_PYTHON_HOME, or the one that the
   library was built with, which in a bundle is beside it. A second start with the same home does
   nothing. kvarn_stop cancels what runs, waits for it, saves and frees everything; after that,
   nothing can be started again. */
long kvarn_start_api(int api, const char *home);
static inline long kvarn_start(const char *home) { return kvarn_start_api(KVARN_API, home); }
long kvarn_stop(void);
const char *kvarn_version(void);
long kvarn_api(void);
const char *kvarn_error(void); /* of this thread's last call; lives until its next one */

/* Messages, such as that kernels are being compiled. Lines may come on a thread of kvarn's own.
   NULL: no messages, as at first. */
long kvarn_on_log(kvarn_on_line on_line, void *user);

/* Models. `path` NULL: the default model. Options: {"threads":2,"device":"cuda","kv_on":"host"};
   "lora": a text "FILE:SCALE", or an array of them. on_progress may be NULL; it is called before and
   after loading, with bytes. A model with contexts cannot be freed. */
void *kvarn_model_open(const char *path, const char *options, kvarn_on_progress on_progress,
                       void *user);
long kvarn_model_free(void *model);
long kvarn_model_info(void *model, char *json, size_t room);
long kvarn_tokenize(void *model, const char *text, size_t n, int flags, int32_t *ids, size_t room);
long kvarn_detokenize(void *model, const int32_t *ids, size_t n, int flags, char *text,
                      size_t room);

/* Contexts. Options are those of the command line:
   {"ctx":131072,"kv_type":"q8_0","method":"hash","budget":"1%","keep":"all","prefill":"sparse",
   "prefill_k":512,"store":"book/"}
   "store" is a folder that keeps the context; "pack" goes on from a pack, which stays as it is.
   kvarn_context_info returns what kvarn chose where no option says it. */
void *kvarn_context_new(void *model, const char *options);
long kvarn_context_free(void *context);
long kvarn_context_info(void *context, char *json, size_t room);

/* Read after the tokens that the context holds. They return the new number of its tokens + 1, as do
   kvarn_truncate (to the first n tokens) and kvarn_save. A cancelled read keeps whole chunks.
   Control tokens that a text spells out are text, as in messages and packs. To read them as control
   tokens, give the ids of kvarn_tokenize with KVARN_SPECIAL to kvarn_read_ids. */
long kvarn_read(void *context, const char *text, size_t n, kvarn_on_progress on_progress,
                void *user);
long kvarn_read_ids(void *context, const int32_t *ids, size_t n, kvarn_on_progress on_progress,
                    void *user);
long kvarn_truncate(void *context, size_t n);
long kvarn_save(void *context);
long kvarn_logits(void *context, float *logits, size_t room); /* of the last token; their number */

/* Generate after the tokens that the context holds. They return the tokens of the answer + 1.
   Options are those of kvarn.Sampler, and {"max_tokens":64,"stop":["\n"],"draft":"ngram"}, where a
   draft may be a smaller model's file, too, and stays loaded with the context. `messages` is a JSON
   array of {"role":"user","content":"…"}; what the context holds of them is not read again. */
long kvarn_generate(void *context, const char *options, kvarn_on_text on_text, void *user);
long kvarn_chat(void *context, const char *messages, const char *options, kvarn_on_text on_text,
                void *user);

/* End the call that uses the context; its result is KVARN_CANCELLED. From any thread, at once. */
long kvarn_cancel(void *context);

/* Packs: texts that were read once. `name` is one of the user's packs, or a path with a slash.
   Options: {"ctx":4096,"kv_type":"q8_0","prefill":"sparse"}. Goes on where an earlier build was
   stopped. Returns the tokens of the pack + 1. */
long kvarn_pack_build(void *model, const char *name, const char *text, size_t n,
                      const char *options, kvarn_on_progress on_progress, void *user);
long kvarn_pack_info(const char *name, char *json, size_t room);

#ifdef __cplusplus
}
#endif

#endif
