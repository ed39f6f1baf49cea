/* The process: start of the interpreter, calls in progress, the end. Included by library.c. */

#define STARTING "starting kvarn: "

enum { NEW, RUNNING, ENDED };
static atomic_int state = NEW;
static atomic_int ending, exiting; /* refuse calls; what runs is to end; `exiting` at exit */
static atomic_long inside, outside; /* calls that run Python, and those inside a callback */
static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
static char *home_of_python; /* that of the interpreter which was started here */

static _Thread_local char error[2048];
static _Thread_local int in_callback;

static long fail(long code, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    vsnprintf(error, sizeof error, format, values);
    va_end(values);
    return code;
}

/* For Python. */
static void set_error(const char *text) { snprintf(error, sizeof error, "%s", text); }
static int is_ending(void) { return atomic_load(&ending); }

#include "handles.c"

static void sleep_1_ms(void)
{
    struct timespec time = {0, 1000000};
    nanosleep(&time, NULL);
}

static long has_ended(const char *name)
{
    return fail(KVARN_NOT_RUNNING, "%s: kvarn has been stopped, or the process is ending", name);
}

/* Before a call: whether it may run now. `context`: the one that it uses, or 0. */
static long enter(const char *name, uint64_t context, int in_callbacks)
{
    place *entry = NULL;
    error[0] = 0;
    if (in_callback && !in_callbacks)
        return fail(KVARN_BUSY, "%s was called inside a callback, where only kvarn_cancel, "
                    "kvarn_error and the tokenizer may be called", name);
    if (atomic_load(&state) == NEW)
        return fail(KVARN_NOT_RUNNING, "%s was called before kvarn_start", name);
    if (atomic_load(&ending)) return has_ended(name);
    if (context) {
        if (!(entry = place_of(context, CONTEXT))) return bad_handle(context, CONTEXT);
        if (atomic_exchange(&entry->busy, 1))
            return fail(KVARN_BUSY, "%s: another call uses this context: wait for it, or end it "
                        "with kvarn_cancel", name);
        if (atomic_load(&entry->handle) != context) { /* freed meanwhile */
            atomic_store(&entry->busy, 0);
            return bad_handle(context, CONTEXT);
        }
        atomic_store(&entry->stop, 0);
    }
    atomic_fetch_add(&inside, 1);
    if (!atomic_load(&ending)) return 1;
    atomic_fetch_sub(&inside, 1);
    if (entry) atomic_store(&entry->busy, 0);
    return has_ended(name);
}

static long leave(uint64_t context, long result)
{
    if (context) atomic_store(&places[context >> 2 & (PLACES - 1)].busy, 0);
    atomic_fetch_sub(&inside, 1);
    if (result) return result;
    return fail(KVARN_ERROR, "Python could not run the call"); /* as cffi says it */
}

/* Callbacks run without Python's lock. They are counted apart, as they may take any time. */
static void callback_begins(void)
{
    in_callback++;
    atomic_fetch_add(&outside, 1);
    atomic_fetch_sub(&inside, 1);
}

static void callback_ended(void)
{
    atomic_fetch_add(&inside, 1);
    atomic_fetch_sub(&outside, 1);
    in_callback--;
    if (!atomic_load(&exiting)) return;
    atomic_fetch_sub(&inside, 1);
    for (;;) pause(); /* the process ends: Python must not run any more */
}

static int call_text(kvarn_on_text f, const char *utf8, size_t n, void *user)
{
    callback_begins();
    int stops = f(utf8, n, user);
    callback_ended();
    return stops;
}

static int call_progress(kvarn_on_progress f, long done, long total, void *user)
{
    callback_begins();
    int stops = f(done, total, user);
    callback_ended();
    return stops;
}

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static kvarn_on_line log_to;
static void *log_user;

static void call_log(const char *line)
{
    pthread_mutex_lock(&log_lock);
    kvarn_on_line f = log_to;
    void *user = log_user;
    pthread_mutex_unlock(&log_lock);
    if (!f) return;
    in_callback++;
    f(line, user);
    in_callback--;
}

/* At exit: ends running calls before the destructors of libraries free what they use. */
static void at_exit(void)
{
    atomic_store(&ending, 1);
    atomic_store(&exiting, 1);
    stop_all();
    for (int i = 0; i < 10000 && atomic_load(&inside); i++) sleep_1_ms();
}

/* Handlers run in reverse order: again once the libraries of kernels are loaded. */
static void arm(void) { atexit(at_exit); }

/* The interpreter. In a bundle these are empty at build time: Python is beside the library. */
static const char *own_home = PYTHON_HOME, *own_paths = PYTHON_PATHS;
static const char *own_program = PYTHON_PROGRAM;

static long find_own_python(void)
{
    static char home[4096], paths[4200], program[4200];
    if (*own_home) return 1;
    Dl_info found;
    char *library = NULL; /* HOME/lib/libkvarn.so */
    if (dladdr((void *)(uintptr_t)&find_own_python, &found))
        library = realpath(found.dli_fname, home);
    for (int i = 0; library && i < 2; i++) *strrchr(home, '/') = 0;
    if (!library) return fail(KVARN_ERROR, STARTING "the library cannot find its own folder");
    snprintf(paths, sizeof paths, "%s/" PYTHON_LIBRARY "/site-packages", home);
    snprintf(program, sizeof program, "%s/bin/python" PYTHON_VERSION, home);
    own_home = home, own_paths = paths, own_program = program;
    return 1;
}

static long python_failed(void)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    PyObject *text = value ? PyObject_Str(value) : NULL;
    const char *reason = text ? PyUnicode_AsUTF8(text) : NULL;
    fail(KVARN_ERROR, STARTING "%s: %s; packages were looked for in %s and in %s",
         type ? ((PyTypeObject *)type)->tp_name : "error", reason ? reason : "?",
         home_of_python ? home_of_python : "the folders of this Python", own_paths);
    Py_XDECREF(text), Py_XDECREF(type), Py_XDECREF(value), Py_XDECREF(trace);
    PyErr_Clear();
    return KVARN_ERROR;
}

static int is_file(const char *folder, const char *name)
{
    char path[4096];
    struct stat found;
    return snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path
           && !stat(path, &found) && S_ISREG(found.st_mode);
}

/* Extension modules find Python's symbols only where they are global, and a host that opens this
   library with RTLD_LOCAL has them local. */
static long make_symbols_global(void)
{
    Dl_info found;
    if (dladdr((void *)(uintptr_t)&Py_InitializeFromConfig, &found)
        && dlopen(found.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL)) return 1;
    const char *reason = dlerror();
    return fail(KVARN_ERROR, STARTING "libpython cannot be opened again: %s", reason ? reason : "?");
}

static PyStatus set(PyConfig *config, wchar_t **field, const char *text)
{
    return PyConfig_SetBytesString(config, field, text);
}

static long python_start(const char *home)
{
    if (!is_file(home, PYTHON_LIBRARY "/os.py"))
        return fail(KVARN_ERROR, STARTING "%s has no " PYTHON_LIBRARY "/os.py: expected the home "
                    "of Python " PYTHON_VERSION " (`sys.base_prefix`)", home);
    if (make_symbols_global() < 0) return KVARN_ERROR;
    PyPreConfig before;
    PyPreConfig_InitIsolatedConfig(&before);
    before.utf8_mode = 1; /* or names of files are ASCII, as the locale of C has it */
    PyStatus status = Py_PreInitialize(&before);
    if (!PyStatus_Exception(status)) {
        int is_own = !strcmp(home, own_home);
        char program[4096];
        snprintf(program, sizeof program, "%s/bin/python" PYTHON_VERSION, home);
        PyConfig config;
        PyConfig_InitIsolatedConfig(&config);
        config.site_import = !is_own; /* its packages would come before those of own_paths */
        status = set(&config, &config.home, home);
        if (!PyStatus_Exception(status)) /* what starts processes wants a Python */
            status = set(&config, &config.executable, is_own ? own_program : program);
        if (!PyStatus_Exception(status)) status = Py_InitializeFromConfig(&config);
        PyConfig_Clear(&config);
    }
    if (PyStatus_Exception(status))
        return fail(KVARN_ERROR, STARTING "Python of %s: %s", home,
                    status.err_msg ? status.err_msg : "no reason given");
    return 1;
}

/* sys.path gets the folders in which kvarn and its packages were at build time. */
static int add_paths(void)
{
    PyObject *site = PyImport_ImportModule("site");
    PyObject *text = site ? PyUnicode_DecodeFSDefault(own_paths) : NULL;
    PyObject *paths = text ? PyObject_CallMethod(text, "splitlines", NULL) : NULL;
    for (Py_ssize_t i = 0; paths && i < PyList_Size(paths); i++) {
        PyObject *done = PyObject_CallMethod(site, "addsitedir", "O", PyList_GetItem(paths, i));
        if (!done) Py_CLEAR(paths);
        Py_XDECREF(done);
    }
    PyObject *entry = paths ? PyImport_ImportModule("kvarn.runtime.capi.entry") : NULL;
    int is_done = entry != NULL;
    Py_XDECREF(entry), Py_XDECREF(paths), Py_XDECREF(text), Py_XDECREF(site);
    return is_done;
}

static long start(const char *home)
{
    static int is_begun;
    int is_own = !is_begun && !Py_IsInitialized();
    if (!is_begun && !is_own && strncmp(Py_GetVersion(), PYTHON_VERSION ".", sizeof PYTHON_VERSION))
        return fail(KVARN_ERROR, STARTING "this process runs Python %.20s and the library was "
                    "built for " PYTHON_VERSION ": build it with the Python of the process",
                    Py_GetVersion());
    if (is_own) {
        if (python_start(home) < 0) return KVARN_ERROR;
        home_of_python = strdup(home);
    }
    is_begun = 1;
    PyGILState_STATE lock = PyGILState_LOCKED;
    if (!is_own) lock = PyGILState_Ensure();
    long done = add_paths() ? 1 : python_failed();
    if (is_own) PyEval_SaveThread(); else PyGILState_Release(lock);
    if (done < 0) return done;
    done = py_begin(home_of_python != NULL);
    if (done == 0) return fail(KVARN_ERROR, STARTING "cffi could not load the library's module");
    if (done < 0) return done;
    arm();
    atomic_store(&state, RUNNING);
    return 1;
}
