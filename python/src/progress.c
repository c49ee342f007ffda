/* SPDX-License-Identifier: BSD-3-Clause */
/* progress.c - Python's progress functions, and Python code inside a call of the store. */
#include "core.h"

void core_visit_begin(struct core_progress *self)
{
    PyEval_RestoreThread(self->thread);
    if (self->pool != NULL)
        core_callback_begin(self->pool, &self->callback);
}

void core_visit_end(struct core_progress *self)
{
    if (self->pool != NULL)
        core_callback_end(self->pool, &self->callback);
    self->thread = PyEval_SaveThread();
}

/* Called in the calling thread, without the GIL. */
static bool on_progress(void *context, const char *what, uint64_t done, uint64_t total)
{
    struct core_progress *self = context;
    if (self->raised)
        return false;
    core_visit_begin(self);
    if (PyErr_CheckSignals() != 0) {
        self->raised = true;
    } else if (self->function != NULL) {
        PyObject *answer = PyObject_CallFunction(self->function, "sKK", what != NULL ? what : "",
                                                 (unsigned long long)done, (unsigned long long)total);
        self->raised = answer == NULL;
        Py_XDECREF(answer);
    }
    core_visit_end(self);
    return !self->raised;
}

void core_progress_init(struct core_progress *self, struct pool_object *pool, PyObject *function)
{
    self->progress.call = on_progress;
    self->progress.context = self;
    self->pool = pool;
    self->function = function == Py_None ? NULL : function;
    self->thread = NULL;
    self->raised = false;
}
