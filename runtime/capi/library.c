/* libkvarn: the functions of kvarn.h. They are C, so that each can be refused where Python cannot
   run; the py_… functions are written in Python (entry.py), and cffi makes them callable. */

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "kvarn.h"
#include "python_functions.h"
#include "process.c"

#define NUMBER(handle) ((uint64_t)(uintptr_t)(handle))

/* `call`, if it may run now. */
#define RUN(context, in_callbacks, call)                       \
    do {                                                       \
        long may = enter(__func__, (context), (in_callbacks)); \
        return may < 0 ? may : leave((context), (call));       \
    } while (0)

/* The same with a context, which is refused first where it is NULL. */
#define RUN_IN(context, call)                                                    \
    do {                                                                         \
        if (atomic_load(&state) != NEW && !in_callback && !(context))            \
            return bad_handle(0, CONTEXT);                                       \
        RUN(NUMBER(context), 0, call);                                           \
    } while (0)

static void *handle_of(long made) { return made < 0 ? NULL : (void *)made; }

long kvarn_start_api(int api, const char *home)
{
    error[0] = 0;
    if (api != KVARN_API)
        return fail(KVARN_BAD_ARGUMENT, STARTING "the program was compiled with a kvarn.h of API "
                    "%d, and the library has API %d: compile it with the library's header", api,
                    KVARN_API);
    if (in_callback) return fail(KVARN_BUSY, "kvarn_start was called inside a callback");
    pthread_mutex_lock(&starting);
    long done = find_own_python();
    const char *asked = home ? home : getenv("KVARN_PYTHON_HOME");
    const char *wanted = asked && *asked ? asked : own_home;
    if (done > 0 && atomic_load(&ending))
        done = fail(KVARN_NOT_RUNNING, STARTING "it has been stopped, which is for good");
    else if (done > 0 && home_of_python && strcmp(wanted, home_of_python))
        done = fail(KVARN_BAD_ARGUMENT, STARTING "Python runs already, from %s: another home, %s, "
                    "is not possible", home_of_python, wanted);
    else if (done > 0 && atomic_load(&state) == NEW)
        done = start(wanted);
    pthread_mutex_unlock(&starting);
    return done;
}

long kvarn_stop(void)
{
    error[0] = 0;
    if (in_callback) return fail(KVARN_BUSY, "kvarn_stop was called inside a callback");
    pthread_mutex_lock(&starting);
    long done = 1;
    if (atomic_load(&state) == NEW)
        done = fail(KVARN_NOT_RUNNING, "kvarn_stop was called before kvarn_start");
    else if (!atomic_exchange(&ending, 1)) {
        stop_all();
        while (atomic_load(&inside) + atomic_load(&outside)) sleep_1_ms();
        if (!(done = py_end())) done = fail(KVARN_ERROR, "Python could not stop");
        atomic_store(&state, ENDED);
    }
    pthread_mutex_unlock(&starting);
    return done;
}

const char *kvarn_version(void) { return KVARN_VERSION; }

long kvarn_api(void) { return KVARN_API; }

const char *kvarn_error(void) { return error; }

long kvarn_on_log(kvarn_on_line on_line, void *user)
{
    error[0] = 0;
    pthread_mutex_lock(&log_lock);
    log_to = on_line, log_user = user;
    pthread_mutex_unlock(&log_lock);
    return 1;
}

void *kvarn_model_open(const char *path, const char *options, kvarn_on_progress on_progress,
                       void *user)
{
    long may = enter(__func__, 0, 0);
    return handle_of(may < 0 ? may : leave(0, py_model_open(path, options, on_progress, user)));
}

long kvarn_model_free(void *model) { RUN(0, 0, py_model_free(NUMBER(model))); }

long kvarn_model_info(void *model, char *json, size_t room)
{
    RUN(0, 0, py_model_info(NUMBER(model), json, room));
}

long kvarn_tokenize(void *model, const char *text, size_t n, int flags, int32_t *ids, size_t room)
{
    RUN(0, 1, py_tokenize(NUMBER(model), text, n, flags, ids, room));
}

long kvarn_detokenize(void *model, const int32_t *ids, size_t n, int flags, char *text,
                      size_t room)
{
    RUN(0, 1, py_detokenize(NUMBER(model), ids, n, flags, text, room));
}

void *kvarn_context_new(void *model, const char *options)
{
    long may = enter(__func__, 0, 0);
    return handle_of(may < 0 ? may : leave(0, py_context_new(NUMBER(model), options)));
}

long kvarn_context_free(void *context) { RUN_IN(context, py_context_free(NUMBER(context))); }

long kvarn_context_info(void *context, char *json, size_t room)
{
    RUN_IN(context, py_context_info(NUMBER(context), json, room));
}

long kvarn_read(void *context, const char *text, size_t n, kvarn_on_progress on_progress,
                void *user)
{
    RUN_IN(context, py_read(NUMBER(context), text, n, on_progress, user));
}

long kvarn_read_ids(void *context, const int32_t *ids, size_t n, kvarn_on_progress on_progress,
                    void *user)
{
    RUN_IN(context, py_read_ids(NUMBER(context), ids, n, on_progress, user));
}

long kvarn_truncate(void *context, size_t n)
{
    RUN_IN(context, py_truncate(NUMBER(context), n));
}

long kvarn_save(void *context) { RUN_IN(context, py_save(NUMBER(context))); }

long kvarn_logits(void *context, float *logits, size_t room)
{
    RUN_IN(context, py_logits(NUMBER(context), logits, room));
}

long kvarn_generate(void *context, const char *options, kvarn_on_text on_text, void *user)
{
    RUN_IN(context, py_generate(NUMBER(context), options, on_text, user));
}

long kvarn_chat(void *context, const char *messages, const char *options, kvarn_on_text on_text,
                void *user)
{
    RUN_IN(context, py_chat(NUMBER(context), messages, options, on_text, user));
}

long kvarn_cancel(void *context)
{
    error[0] = 0;
    place *entry = place_of(NUMBER(context), CONTEXT);
    if (!entry) return bad_handle(NUMBER(context), CONTEXT);
    atomic_store(&entry->stop, 1);
    return 1;
}

long kvarn_pack_build(void *model, const char *name, const char *text, size_t n,
                      const char *options, kvarn_on_progress on_progress, void *user)
{
    RUN(0, 0, py_pack_build(NUMBER(model), name, text, n, options, on_progress, user));
}

long kvarn_pack_info(const char *name, char *json, size_t room)
{
    RUN(0, 0, py_pack_info(name, json, room));
}
