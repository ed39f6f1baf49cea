/* Handles of models and contexts, and the word that stops each context. Included by process.c. */

/* A handle is serial << 14 | place << 2 | kind, and is not used again. */
enum { MODEL = 1, CONTEXT = 2, PLACES = 4096 };
typedef struct {
    _Atomic uint64_t handle;
    _Atomic int64_t stop; /* read by kernels, between two phases */
    atomic_int busy;
} place;
static place places[PLACES];
static atomic_ullong serial;

static uint64_t handle_new(int kind)
{
    uint64_t number = atomic_fetch_add(&serial, 1) + 1;
    for (uint64_t i = 0; i < PLACES; i++) {
        uint64_t none = 0, made = number << 14 | i << 2 | (uint64_t)kind;
        if (!atomic_compare_exchange_strong(&places[i].handle, &none, made)) continue;
        while (atomic_load(&places[i].busy)) sched_yield(); /* the last one is being freed */
        return made;
    }
    return 0;
}

static place *place_of(uint64_t handle, int kind)
{
    place *entry = &places[handle >> 2 & (PLACES - 1)];
    return (handle & 3) == (uint64_t)kind && atomic_load(&entry->handle) == handle ? entry : NULL;
}

static void handle_free(uint64_t handle)
{
    atomic_store(&places[handle >> 2 & (PLACES - 1)].handle, 0);
}

static int64_t *stop_of(uint64_t context)
{
    return (int64_t *)&places[context >> 2 & (PLACES - 1)].stop;
}

static long bad_handle(uint64_t handle, int kind)
{
    const char *name = kind == MODEL ? "model" : "context", *problem = "is not a handle of kvarn";
    int given = handle & 3;
    if (!handle) return fail(KVARN_BAD_ARGUMENT, "the %s is NULL: see what kvarn_error said when "
                             "it was opened", name);
    if ((given == MODEL || given == CONTEXT) && handle >> 14 && handle >> 14 <= serial)
        problem = given != kind ? "is a handle of another kind" : "has been freed";
    return fail(KVARN_BAD_ARGUMENT, "the %s %p %s", name, (void *)(uintptr_t)handle, problem);
}

static void stop_all(void)
{
    for (int i = 0; i < PLACES; i++) atomic_store(&places[i].stop, 1);
}
