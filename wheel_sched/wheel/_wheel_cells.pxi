# The third part of _wheel_c.pyx: the memory of entries.
#
# An entry with its header for the collector takes 64 bytes: one cache line, if it is aligned to a line. Python's own
# allocator puts an entry across two lines. It also keeps freed pieces in a linked list, so the CPU learns the address
# of the next free piece only from the piece before; after a hundred thousand timers, each new entry waits for memory.
# Here entries are in slabs, one per line, and bits mark the free lines. New entries take lines in the order of their
# addresses, which the CPU fetches ahead. That saves a third of the time of `schedule`, and much of the time of
# `cancel`.
#
# The collector treats an entry like any other object, with one exception: a new entry does not count towards the next
# collection. A cycle through an entry leads through its task or its wheel, and these do count.
#
# A slab is freed with its last entry. One empty slab is kept, so that a single timer that comes and goes does not
# allocate and free a slab each time.

cdef enum:
    CELL = 64  # bytes
    CELLS = 4096  # per slab: as many as the 64 words of 64 bits in `free` can mark
    WORD_BITS = 64

cdef struct Links:
    Links* next
    Links* previous

cdef struct Slab:  # stored in its own first cells, which are never free
    Links links  # the neighbours in the ring of slabs that have room
    uint64_t words  # bit n: free[n] is not zero
    uint64_t free[WORD_BITS]  # a bit per cell: 1 = free
    uint32_t taken  # cells in use by entries

cdef PyObjectArenaAllocator arena
cdef Links cells  # head of the ring of slabs that have room
cdef Slab* spare = NULL  # the empty slab that is kept
cdef Py_ssize_t head_size = CELL - (<PyTypeObject*>TimerTaskEntry).tp_basicsize  # size of the collector's head before an entry


cdef inline void leave(Links* links) noexcept:
    """Take a slab out of the ring: it is full, or it is freed."""
    links.next.previous = links.previous
    links.previous.next = links.next


cdef inline void join(Slab* slab) noexcept:
    """Put a slab that has room at the end of the ring. The slabs in front fill first, so that others become empty."""
    slab.links.next = &cells
    slab.links.previous = cells.previous
    cells.previous.next = &slab.links
    cells.previous = &slab.links


cdef Slab* another_slab() noexcept:
    """Put an empty slab, the kept one or a new one, into the ring, and return it. NULL when there is no memory."""
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
    """Allocate one entry (tp_alloc of `TimerTaskEntry`)."""
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
    """Free one entry (tp_free of `TimerTaskEntry`)."""
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
