# The third part of _wheel_c.pyx: the memory of entries.
#
# An entry takes 64 bytes with the collector's head before it: one cache line, if it begins where a line does. Python's
# own allocator puts it across two, and hands memory out again in the order it was given up, each piece naming the next:
# after a hundred thousand timers have come and gone, every one that is made waits for the memory of the one before. Here
# entries lie in slabs, on lines, and bits say which lines are free, so new ones are taken in the order of their
# addresses, which the processor fetches ahead. That is a third of the time of `schedule`, and much of `cancel`'s.
#
# The collector knows an entry like any other object, only its making is not counted towards the next collection: a cycle
# through an entry leads through its task or its wheel, whose making was.
#
# A slab goes back to the system with its last entry, but for one that is kept, so that a timer more or less at the edge
# of a slab costs nothing.

cdef enum:
    CELL = 64  # bytes
    CELLS = 4096  # of a slab: as many as a word of words has bits
    WORD_BITS = 64

cdef struct Links:
    Links* next
    Links* previous

cdef struct Slab:  # lies in its own first cells, which are never free
    Links links  # among the slabs that have room
    uint64_t words  # bit n: words[n] has a free cell
    uint64_t free[WORD_BITS]
    uint32_t taken

cdef PyObjectArenaAllocator arena
cdef Links cells  # before the first and after the last slab that has room
cdef Slab* spare = NULL  # the empty one that is kept
cdef Py_ssize_t head_size = CELL - (<PyTypeObject*>TimerTaskEntry).tp_basicsize  # of what the collector keeps before an entry


cdef inline void leave(Links* links) noexcept:
    """The slab has no room any more, or is going."""
    links.next.previous = links.previous
    links.previous.next = links.next


cdef inline void join(Slab* slab) noexcept:
    """The slab has room. It comes last: those in front are to be filled, so that some others become empty."""
    slab.links.next = &cells
    slab.links.previous = cells.previous
    cells.previous.next = &slab.links
    cells.previous = &slab.links


cdef Slab* another_slab() noexcept:
    """An empty one, which has joined the others; NULL without memory."""
    global spare
    cdef Slab* slab = spare
    cdef int cell
    if slab != NULL:
        spare = NULL
    else:
        slab = <Slab*>arena.alloc(arena.ctx, CELLS * CELL)
        if slab == NULL:
            return NULL
        memset(slab, 0, sizeof(Slab))
        memset(slab.free, 0xFF, sizeof(slab.free))
        slab.words = ~<uint64_t>0
        for cell in range((sizeof(Slab) + CELL - 1) // CELL):
            slab.free[0] &= slab.free[0] - 1
    join(slab)
    return slab


cdef PyObject* take_cell(PyTypeObject* kind, Py_ssize_t items) noexcept:
    """The entries' tp_alloc."""
    cdef Slab* slab = <Slab*>cells.next
    cdef int word, cell
    cdef PyObject* entry
    if &slab.links == &cells:
        slab = another_slab()
        if slab == NULL:
            return PyErr_NoMemory()
    word = lowest_bit(slab.words)
    cell = word * WORD_BITS + lowest_bit(slab.free[word])
    slab.free[word] &= slab.free[word] - 1
    if not slab.free[word]:
        slab.words &= slab.words - 1
        if not slab.words:
            leave(&slab.links)
    slab.taken += 1
    entry = <PyObject*>(<char*>slab + cell * CELL)
    memset(entry, 0, CELL)
    entry = <PyObject*>(<char*>entry + head_size)
    (<TimerTaskEntry>entry).where.cell = cell
    PyObject_Init(entry, kind)
    PyObject_GC_Track(entry)
    return entry


cdef void give_cell(void* entry) noexcept:
    """The entries' tp_free."""
    global spare
    cdef int cell = (<TimerTaskEntry>entry).where.cell
    cdef Slab* slab = <Slab*>(<char*>entry - head_size - cell * CELL)
    if not slab.words:
        join(slab)
    slab.free[cell // WORD_BITS] |= (<uint64_t>1) << (cell % WORD_BITS)
    slab.words |= (<uint64_t>1) << (cell // WORD_BITS)
    slab.taken -= 1
    if slab.taken == 0:
        leave(&slab.links)
        if spare == NULL:
            spare = slab
        else:
            arena.free(arena.ctx, slab, CELLS * CELL)
