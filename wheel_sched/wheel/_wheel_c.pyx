# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: auto_pickle=False, binding=False, embedsignature=False, always_allow_keywords=True
"""The compiled core: does what `wheel_sched.wheel.pure` does, with arrays and bitmaps.

A level has `wheel_size` slots, but at most 64. The highest bit in which a tick differs from the clock decides the
tick's level, and the tick's bits of that level are the number of its slot. So levels are aligned, and each tick is
FIFO as in the pure core. A slot is an array of its entries in the order in which they came, and each entry knows its
index there. An entry that leaves makes its place empty. When most places are empty, the slot moves the remaining
entries together. A level has a bitmap of its occupied slots, so one count of trailing zeros finds the next slot.

Source: Varghese and Lauck's scheme 7 as in Tokio (`runtime/time/wheel`). Tokio links the entries of a slot; this module
keeps them in an array. A cancel costs the same. An entry takes 8 bytes in an array, and links take 16. The main gain is
in memory reads: the CPU fetches a dozen entries of an array at a time, but with links it learns each address only from
the entry before. Once there are too many timers for the caches (100,000 over an hour), arrays are three times as fast.

Ownership. Slots hold C pointers, which Cython does not count as references. A slot owns one reference to each of its
entries. The wheel shows these references to the garbage collector, and releases them in a loop, never in a recursion.
Python code can run wherever an object is made or released. So every method makes its objects first and releases tasks
last; in between, the slots are consistent.

Range. An entry whose deadline is 2**62 ms or later waits in a dict (`beyond`), with exact Python ints. Once the clock
has reached 2**62 ms, all entries wait there. The dict is slower than the slots.

Threads. Under the GIL each call is atomic, so any thread may schedule and cancel. On a free-threaded build, the import
of this module turns the GIL on.
"""

cimport cython
from cpython.list cimport PyList_Append, PyList_GET_SIZE
from cpython.long cimport PyLong_CheckExact
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_RawFree, PyMem_RawRealloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from sys import getsizeof
from types import GenericAlias

from wheel_sched.wheel.arguments import batch_limit, check_shape, whole
from wheel_sched.wheel.states import EntryState, WheelCounters

cdef extern from *:
    """
    #if defined(_MSC_VER)
    #include <intrin.h>
    static int lowest_bit(uint64_t x) { unsigned long i; _BitScanForward64(&i, x); return (int)i; }
    static int highest_bit(uint64_t x) { unsigned long i; _BitScanReverse64(&i, x); return (int)i; }
    #else
    #define lowest_bit(x) __builtin_ctzll(x)
    #define highest_bit(x) (63 - __builtin_clzll(x))
    #endif
    #if defined(__GNUC__) || defined(__clang__)
    #define prefetch(address) __builtin_prefetch(address)
    #else
    #define prefetch(address) ((void)(address))
    #endif
    /* Where an entry is, and its state (`standing`), in one word: so an entry fits into one cache line. */
    typedef struct {
        uint32_t place; /* index in its slot */
        unsigned int level : 6, slot : 6, standing : 2, giant : 1, cell : 12; /* cell: see _wheel_cells.pxi */
    } Where;
    /* PyLong_AsLongLongAndOverflow, but without its call for ints from 1 to 2**60, which have one or two digits. */
    static inline int64_t as_ms(PyObject *value, int *overflow) {
    #if PYLONG_BITS_IN_DIGIT == 30
        const digit *digits;
    #if PY_VERSION_HEX >= 0x030C0000
        uintptr_t tag = ((PyLongObject *)value)->long_value.lv_tag;
        digits = ((PyLongObject *)value)->long_value.ob_digit;
        int size = (tag & 3) || tag >> 3 > 2 ? -1 : (int)(tag >> 3); /* positive, of one digit or two */
    #else
        Py_ssize_t size = Py_SIZE(value);
        digits = ((PyLongObject *)value)->ob_digit;
    #endif
        if (size == 1) return (int64_t)digits[0];
        if (size == 2) return (int64_t)digits[0] | (int64_t)digits[1] << 30;
    #endif
        return PyLong_AsLongLongAndOverflow(value, overflow);
    }
    /* Prefetch the entry's neighbours in the collector's list: a release, which comes soon, writes to both. */
    static void soon_gone(PyObject *entry) {
        uintptr_t *head = (uintptr_t *)entry - 2;
        prefetch((void *)head[0]);
        prefetch((void *)(head[1] & ~(uintptr_t)3));
    }
    /* Append `item`, and pass our reference to the list. Out of memory: returns -1 with an exception set. */
    static int give(PyObject *list, PyObject *item) {
        int answer = PyList_Append(list, item);
        if (answer == 0) Py_DECREF(item);
        return answer;
    }
    """
    ctypedef struct Where:
        uint32_t place
        unsigned int level
        unsigned int slot
        unsigned int standing
        unsigned int giant
        unsigned int cell

    void prefetch(void* address) noexcept
    void soon_gone(PyObject* entry) noexcept
    int64_t as_ms(object value, int* overflow) noexcept
    int give(list into, PyObject* item) except -1
    int lowest_bit(uint64_t x) noexcept
    int highest_bit(uint64_t x) noexcept

cdef extern from "Python.h":
    ctypedef int (*visitproc)(PyObject*, void*) noexcept
    ctypedef int (*traverseproc)(PyObject*, visitproc, void*) noexcept
    ctypedef int (*inquiry)(PyObject*) noexcept
    ctypedef PyObject* (*allocfunc)(PyTypeObject*, Py_ssize_t) noexcept
    ctypedef void (*freefunc)(void*) noexcept
    ctypedef struct PyTypeObject:
        Py_ssize_t tp_basicsize
        traverseproc tp_traverse
        inquiry tp_clear
        allocfunc tp_alloc
        freefunc tp_free
    ctypedef struct PyObjectArenaAllocator:
        void* ctx
        void* (*alloc)(void*, size_t) noexcept
        void (*free)(void*, void*, size_t) noexcept
    void PyObject_GetArenaAllocator(PyObjectArenaAllocator*) noexcept
    PyObject* PyObject_Init(PyObject*, PyTypeObject*) noexcept
    void PyObject_GC_Track(PyObject*) noexcept
    PyObject* PyErr_NoMemory() noexcept

cdef enum:
    SLOT_BITS = 6  # a level's slots are the bits of one machine word
    SLOTS = 64
    RANGE_BITS = 62
    BEYOND = 63  # the level of the entries in the dict
    # The memory of an entry that was never scheduled is all zeroes; it must count as cancelled.
    CANCELLED = 0
    PENDING = 1
    RUNNING = 2
    FIRED = 3
    FEW = 4  # places that a slot has without an array on the heap
    MANY = 64  # a slot of at least this many places removes its empty places when most entries have left
    MOST = 1 << 30
    AHEAD = 12  # how many entries ahead to prefetch: about as many memory reads as one CPU core does at a time

cdef int64_t RANGE_MS = <int64_t>1 << RANGE_BITS
cdef object _RANGE_MS = RANGE_MS
cdef object _CANCELLED = EntryState.CANCELLED
cdef object _RUNNING = EntryState.RUNNING
cdef tuple _STATES = (EntryState.CANCELLED, EntryState.PENDING, EntryState.RUNNING, EntryState.FIRED)

cdef struct Slot:
    PyObject** items  # in the order in which they came; NULL where an entry has left
    uint32_t first  # all places before it are empty
    uint32_t length  # the index for the next entry
    uint32_t room  # how many places `items` has
    uint32_t live  # how many entries are there
    # `items` points here while FEW places are enough. Small arrays on the heap would lie scattered among the entries,
    # and so the memory of a million freed entries could not go back to the system.
    PyObject* few[FEW]

cdef struct Level:
    uint64_t occupied  # bit n: slot n holds an entry
    Py_ssize_t count
    Slot slots[SLOTS]


@cython.final
cdef class _Giant:
    """A task and its deadline, when the deadline is too large for a machine word."""

    cdef object task
    cdef object deadline_ms


# No tp_clear: a cycle through an entry contains its task or its wheel, and the collector can clear those.
@cython.final
@cython.no_gc_clear
@cython.trashcan(True)
cdef class TimerTaskEntry:
    """The handle of one task. Only the methods of `TimingWheel` make entries."""

    cdef object _task  # the task, or a _Giant with task and deadline when `where.giant` is set
    cdef TimingWheel wheel
    cdef int64_t deadline
    cdef Where where

    __class_getitem__ = classmethod(GenericAlias)

    @property
    def task(self):
        """The scheduled task; None after a cancel, so that a kept handle does not keep the task alive."""
        return (<_Giant>self._task).task if self.where.giant else self._task

    @property
    def deadline_ms(self):
        """The deadline as given, not rounded to a tick."""
        return (<_Giant>self._task).deadline_ms if self.where.giant else self.deadline

    @property
    def state(self):
        """The state of the entry."""
        return _STATES[self.where.standing]

    def cancel(self):
        """Remove the entry at once and drop its task. Returns the new state of the entry.

        CANCELLED: the wheel will never hand the entry out again. RUNNING or FIRED: it was handed out before; nothing
        changed.
        """
        if self.where.standing != PENDING:
            return _STATES[self.where.standing]
        take_out(self.wheel, self)
        self.where.standing = CANCELLED
        cdef object task = self._task  # released at the very end: its finalizer may call anything
        if self.where.giant:
            task = (<_Giant>task).task
            (<_Giant>self._task).task = None
        else:
            self._task = None
        return _CANCELLED

    def finish(self):
        """Mark a handed-out task as run. This has no effect when the entry waits again."""
        if self.where.standing == RUNNING:
            self.where.standing = FIRED

    def reschedule(self, deadline_ms):
        """Wait for `deadline_ms` instead, as if scheduled now. An entry that was handed out waits again.

        Returns False and changes nothing when the entry was cancelled: its task is gone.
        """
        cdef int overflow = 0
        cdef int64_t deadline
        cdef _Giant giant
        if not PyLong_CheckExact(deadline_ms):
            deadline_ms = whole("deadline_ms", deadline_ms)
        deadline = as_ms(deadline_ms, &overflow)
        if self.where.standing == CANCELLED:
            return False
        if overflow or self.where.giant or not in_range(self.wheel, deadline) or self.where.level == BEYOND:
            giant = _Giant()
            if self.where.standing == CANCELLED:  # by a finalizer that ran during the line above
                return False
            if self.where.standing == PENDING:
                take_out(self.wheel, self)
            set_deadline(self, deadline_ms, giant)
            put_in(self.wheel, self)
            return True
        if self.where.standing == PENDING:
            take_out(self.wheel, self)
        self.deadline = deadline
        put_in(self.wheel, self)
        return True

    def touch(self, deadline_ms):
        """Postpone a waiting entry: note the new deadline now, and move the entry when the wheel gets to its old slot.

        This is the cheapest way to postpone one deadline again and again, as heartbeats do. For an earlier deadline
        `touch` does what `reschedule` does. Returns False and changes nothing when the entry does not wait.
        """
        cdef int overflow = 0
        cdef int64_t deadline
        if not PyLong_CheckExact(deadline_ms):
            deadline_ms = whole("deadline_ms", deadline_ms)
        if self.where.standing != PENDING:
            return False
        deadline = as_ms(deadline_ms, &overflow)
        if overflow or self.where.giant or self.where.level == BEYOND or not in_range(self.wheel, deadline):
            if self.where.level != BEYOND or deadline_ms < self.deadline_ms:
                return self.reschedule(deadline_ms)
            set_deadline(self, deadline_ms, _Giant())
            return True
        if deadline < self.deadline:
            return self.reschedule(deadline_ms)
        self.deadline = deadline
        if self.wheel.far_head == <PyObject*>self:
            self.wheel.far_head = NULL
        return True

    def __repr__(self):
        return f"<TimerTaskEntry {_STATES[self.where.standing].value} deadline_ms={self.deadline_ms} task={self.task!r}>"


cdef class TimingWheel:
    """Holds tasks until their deadlines. Arguments and errors are those of `wheel_sched.wheel.pure.TimingWheel`."""

    cdef Level* levels
    cdef int level_count
    cdef int used  # levels needed so far
    cdef int64_t clock  # the tick handed out last; no entry waits in an earlier one
    cdef int64_t tick  # the width of a tick in ms
    cdef int64_t range_ms  # entries with a deadline from here on wait in `beyond`
    cdef Py_ssize_t pending  # how many entries wait in slots
    cdef int bits
    cdef int64_t mask
    cdef uint8_t level_of[64]  # the level, by the highest bit in which the tick differs from the clock
    # The earliest entry of the far levels and its tick; NULL = unknown.
    cdef PyObject* far_head
    cdef int64_t far_tick
    cdef int64_t cascades, relocations, productive_wakeups, empty_wakeups
    # The entries with deadlines from range_ms on. Once the clock is there too, all entries wait here.
    cdef dict beyond
    cdef object beyond_clock  # the clock, once it has reached range_ms; None while `clock` is in use
    cdef object _tick_ms
    cdef object wheel_size

    __class_getitem__ = classmethod(GenericAlias)
    any_thread = True  # because of the GIL, which the import of this module turns on

    def __cinit__(self, now_ms=0, *, tick_ms=1, wheel_size=4096):
        cdef int bit
        check_shape(now_ms, tick_ms, wheel_size)
        self._tick_ms = tick_ms
        self.wheel_size = wheel_size
        self.bits = min(wheel_size.bit_length() - 1, SLOT_BITS)
        self.mask = (1 << self.bits) - 1
        self.level_count = (RANGE_BITS + self.bits - 1) // self.bits
        self.used = 1
        for bit in range(64):
            self.level_of[bit] = bit // self.bits
        self.beyond = {}
        range_ms = _RANGE_MS // tick_ms * tick_ms  # whole ticks: a deadline and a clock leave the range together
        self.range_ms = range_ms
        if now_ms < range_ms:
            self.tick = tick_ms
            self.clock = now_ms // tick_ms
        else:
            self.tick = 1
            self.beyond_clock = now_ms // tick_ms
        self.levels = <Level*>PyMem_Calloc(self.level_count, sizeof(Level))
        if self.levels == NULL:
            raise MemoryError()

    def __dealloc__(self):
        # No slot holds an entry here: an entry keeps its wheel alive until the collector has cleared the slots.
        cdef int level, slot
        if self.levels != NULL:
            for level in range(self.used):
                for slot in range(SLOTS):
                    give_back(&self.levels[level].slots[slot])
        PyMem_Free(self.levels)

    @property
    def now_ms(self):
        """The wheel's clock: the ms up to which entries were handed out. Only `advance` moves it, and never back."""
        return clock_of(self) * self._tick_ms

    @property
    def tick_ms(self):
        """Width of a slot of the lowest level."""
        return self._tick_ms

    @property
    def counters(self):
        """The counters of work done, and the number of waiting entries per level. A call costs O(levels + `beyond`)."""
        cdef int level
        levels = []
        for level in range(self.used):
            levels.append(self.levels[level].count)
        for entry in list(self.beyond):
            level = max((exact_tick(self, entry) ^ clock_of(self)).bit_length() - 1, 0) // self.bits
            levels += [0] * (level + 1 - len(levels))
            levels[level] += 1
        while len(levels) > 1 and not levels[len(levels) - 1]:  # no -1: this module is compiled without wraparound
            levels.pop()
        moves = self.cascades, self.relocations
        return WheelCounters(len(self), tuple(levels), *moves, self.productive_wakeups, self.empty_wakeups)

    def __len__(self):
        return self.pending + len(self.beyond)

    def __repr__(self):
        expiry_ms = self.next_expiry()
        due = "none" if expiry_ms is None else f"{expiry_ms - self.now_ms:+}ms"
        return (
            f"<TimingWheel pending={len(self)} now={self.now_ms}ms next={due}"
            f" tick={self._tick_ms}ms size={self.wheel_size} levels={len(self.counters.levels)}>"
        )

    def schedule(self, task, deadline_ms):
        """Hold `task` until `deadline_ms`. If that time has passed, the task is due at once.

        Raises:
            Rejected: `deadline_ms` is not an int; nothing was scheduled.
        """
        cdef int overflow = 0
        cdef int64_t deadline
        if not PyLong_CheckExact(deadline_ms):
            deadline_ms = whole("deadline_ms", deadline_ms)
        cdef TimerTaskEntry entry = TimerTaskEntry.__new__(TimerTaskEntry)
        entry._task = task
        entry.wheel = self
        deadline = as_ms(deadline_ms, &overflow)
        if overflow or not in_range(self, deadline):
            set_deadline(entry, deadline_ms, _Giant())
            put_in(self, entry)
            return entry
        entry.deadline = deadline
        link(self, <PyObject*>entry, tick_of(self, deadline))
        entry.where.standing = PENDING
        Py_INCREF(entry)
        self.pending += 1
        return entry

    def entry(self, task):
        """An entry that does not wait yet; its state is FIRED. `reschedule` makes it wait."""
        cdef TimerTaskEntry entry = TimerTaskEntry.__new__(TimerTaskEntry)
        entry._task = task
        entry.wheel = self
        entry.where.standing = FIRED
        return entry

    def advance(self, now_ms, limit=None):
        """Move the clock to `now_ms` and hand out the due entries, by deadline, first come first served inside a tick.

        If it hands out `limit` entries, the clock stops at the tick of the last one. Call again with the same now for
        the other entries, until fewer entries than `limit` come back. See `advance` of the pure core.

        Raises:
            Rejected: `now_ms` is not an int or `limit` is not a positive one; nothing was handed out.
        """
        cdef int overflow = 0
        cdef int64_t now
        cdef Py_ssize_t most
        if not PyLong_CheckExact(now_ms):
            now_ms = whole("now_ms", now_ms)
        most = batch_limit(limit)
        cdef list due = []
        if self.beyond_clock is None:
            now = as_ms(now_ms, &overflow)
            if overflow < 0 or (not overflow and now < 0):
                now = 0
            elif overflow or now >= self.range_ms:
                now = self.range_ms
                overflow = 1
            hand_out(self, now // self.tick, most, due)
        if (overflow > 0 or self.beyond_clock is not None) and len(due) < most:
            hand_out_beyond(self, now_ms // self._tick_ms, most, due)
        if due:
            self.productive_wakeups += 1
        else:
            self.empty_wakeups += 1
        return due

    def next_expiry(self):
        """The exact ms at which `advance` would next hand out an entry, or None when no entry waits.

        If the result is `now_ms` or earlier, an entry is due now. The search moves each entry that `touch` postponed to
        the slot of its new deadline.
        """
        cdef Level* near = &self.levels[0]
        cdef int slot
        while near.occupied:
            slot = lowest_bit(near.occupied)
            if earliest(self, 0, slot):
                return ((self.clock & ~self.mask) | slot) * self.tick
        if self.far_head != NULL or find_far_head(self):
            return self.far_tick * self._tick_ms
        if self.beyond:
            return min([exact_tick(self, entry) for entry in list(self.beyond)]) * self._tick_ms
        return None

    def snapshot(self):
        """All waiting tasks as (deadline_ms, task), in the order in which the wheel would hand them out."""
        return [(entry.deadline_ms, entry.task) for entry in waiting(self)]

    def restore(self, pending):
        """Schedule the tasks that `snapshot` or `clear` returned, all or nothing. Returns the new entries in order.

        Raises:
            Rejected: a deadline is not an int; nothing was scheduled.
        """
        checked = [(whole("deadline_ms", deadline_ms), task) for deadline_ms, task in pending]
        return [self.schedule(task, deadline_ms) for deadline_ms, task in checked]

    def clear(self):
        """Cancel all waiting entries, and return what `snapshot` would. Keeps the clock and the counters of work."""
        entries = waiting(self)
        pending = [(entry.deadline_ms, entry.task) for entry in entries]
        for entry in entries:
            entry.cancel()
        return pending


include "_wheel_lists.pxi"
include "_wheel_cells.pxi"

generated_traverse = (<PyTypeObject*>TimingWheel).tp_traverse
(<PyTypeObject*>TimingWheel).tp_traverse = traverse
(<PyTypeObject*>TimingWheel).tp_clear = clear_garbage

if getsizeof(TimerTaskEntry.__new__(TimerTaskEntry)) == CELL:  # otherwise Python's allocator is used, as for every other class
    PyObject_GetArenaAllocator(&arena)
    cells.next = cells.previous = &cells
    (<PyTypeObject*>TimerTaskEntry).tp_alloc = take_cell
    (<PyTypeObject*>TimerTaskEntry).tp_free = give_cell
