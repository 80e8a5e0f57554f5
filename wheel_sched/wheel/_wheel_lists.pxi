# The second part of _wheel_c.pyx: the slots, the entries that wait in `beyond`, and the support of garbage collection.

cdef inline int64_t tick_of(TimingWheel wheel, int64_t deadline) noexcept:
    """The tick at which a deadline within range is handed out, never before the clock."""
    if wheel.tick != 1:
        deadline = (deadline - 1) // wheel.tick + 1 if deadline > 0 else 0
    return deadline if deadline > wheel.clock else wheel.clock


cdef inline bint in_range(TimingWheel wheel, int64_t deadline) noexcept:
    """Whether the deadline and the clock fit into machine words, so that the entry can wait in a slot."""
    return -RANGE_MS < deadline < wheel.range_ms and wheel.beyond_clock is None


cdef int grow(Slot* slot) except -1:
    """Make room for one more entry: reuse the empty places when most are empty, otherwise enlarge the array."""
    if not slot.room:
        slot.items = slot.few
        slot.room = FEW
        return 0
    if 2 * slot.live <= slot.length:
        close_up(slot)
        return 0
    if slot.room >= MOST or resized(slot, 4 * FEW if slot.room == FEW else 2 * slot.room) < 0:
        raise MemoryError()
    return 0


cdef int resized(Slot* slot, uint32_t room) noexcept:
    """Give a slot's array another size, above FEW. Returns -1 and changes nothing when there is no memory."""
    cdef bint own = slot.items == slot.few
    cdef void* items = PyMem_RawRealloc(NULL if own else slot.items, room * sizeof(PyObject*))
    if items == NULL:
        return -1
    if own:
        memcpy(items, slot.few, slot.length * sizeof(PyObject*))
    slot.items = <PyObject**>items
    slot.room = room
    return 0


cdef void close_up(Slot* slot) noexcept:
    """Move the remaining entries to the front, in their order, and free unused room."""
    cdef uint32_t at, length = 0
    cdef uint32_t room = slot.room
    for at in range(slot.first, slot.length):
        if slot.items[at] != NULL:
            slot.items[length] = slot.items[at]
            (<TimerTaskEntry>slot.items[length]).where.place = length
            length += 1
    slot.first = 0
    slot.length = length
    while room > 4 * FEW and room >= 4 * length:
        room //= 2
    if room < slot.room:
        resized(slot, room)


cdef inline void give_back(Slot* slot) noexcept:
    """Free the array of an empty slot."""
    if slot.room > FEW:
        PyMem_RawFree(slot.items)
        slot.room = 0
    slot.first = slot.length = 0


cdef inline void emptied(Level* wheel_level, int slot) noexcept:
    """Mark a slot as free, after its last entry has left."""
    wheel_level.occupied &= ~((<uint64_t>1) << slot)
    give_back(&wheel_level.slots[slot])


cdef inline int link(TimingWheel wheel, PyObject* node, int64_t tick) except -1:
    """Append an entry to the slot of `tick`, which is not before the clock.

    The caller gives the slot a reference to the entry. Raises MemoryError and changes nothing without memory.
    """
    cdef uint64_t differing = <uint64_t>(tick ^ wheel.clock)
    cdef int level = wheel.level_of[highest_bit(differing)] if differing else 0
    cdef int slot = <int>((tick >> (level * wheel.bits)) & wheel.mask)
    cdef Level* wheel_level = &wheel.levels[level]
    cdef Slot* ends = &wheel_level.slots[slot]
    if ends.length == ends.room:
        grow(ends)
    if level:
        if level >= wheel.used:
            wheel.used = level + 1
        if tick < wheel.far_tick and wheel.far_head != NULL:
            wheel.far_head = node
            wheel.far_tick = tick
    (<TimerTaskEntry>node).where.level = level
    (<TimerTaskEntry>node).where.slot = slot
    (<TimerTaskEntry>node).where.place = ends.length
    ends.items[ends.length] = node
    ends.length += 1
    ends.live += 1
    wheel_level.occupied |= (<uint64_t>1) << slot
    wheel_level.count += 1
    return 0


cdef inline void unlink(TimingWheel wheel, PyObject* node) noexcept:
    """Take an entry from its slot; the slot's reference passes to the caller."""
    cdef Level* wheel_level = &wheel.levels[(<TimerTaskEntry>node).where.level]
    cdef int slot = (<TimerTaskEntry>node).where.slot
    cdef Slot* ends = &wheel_level.slots[slot]
    cdef uint32_t place = (<TimerTaskEntry>node).where.place
    ends.items[place] = NULL
    ends.live -= 1
    wheel_level.count -= 1
    if ends.live == 0:
        emptied(wheel_level, slot)
    elif place == ends.length - 1:  # use the place again: for an entry that moves again and again
        ends.length = place
    elif ends.length > MANY and 4 * ends.live < ends.length - ends.first:
        close_up(ends)
    if wheel.far_head == node:
        wheel.far_head = NULL


cdef inline int take_out(TimingWheel wheel, TimerTaskEntry entry) except -1:
    """Take a waiting entry from its slot or the dict. The caller holds a reference to it."""
    if entry.where.level == BEYOND:
        del wheel.beyond[entry]
    else:
        unlink(wheel, <PyObject*>entry)
        wheel.pending -= 1
        Py_DECREF(entry)
    return 0


cdef int put_in(TimingWheel wheel, TimerTaskEntry entry) except -1:
    """Put an entry that waits nowhere into its slot or into `beyond`. If there is no memory, it stays cancelled."""
    entry.where.standing = CANCELLED
    if wheel.beyond_clock is not None or entry.deadline >= wheel.range_ms:
        entry.where.level = BEYOND
        wheel.beyond[entry] = None
    else:
        link(wheel, <PyObject*>entry, tick_of(wheel, entry.deadline))
        Py_INCREF(entry)
        wheel.pending += 1
    entry.where.standing = PENDING
    return 0


cdef int set_deadline(TimerTaskEntry entry, object deadline_ms, _Giant giant) except -1:
    """Set a deadline of any size. `giant` is used when no machine word holds the deadline."""
    cdef object task = entry.task
    cdef object old = entry._task  # released when the entry is consistent again
    if -_RANGE_MS < deadline_ms < _RANGE_MS:
        entry.deadline = deadline_ms
        entry.where.giant = False
        entry._task = task
    else:
        giant.task = task
        giant.deadline_ms = deadline_ms
        entry.deadline = RANGE_MS if deadline_ms > 0 else -RANGE_MS
        entry._task = giant
        entry.where.giant = True
    return 0


cdef int hand_out(TimingWheel wheel, int64_t target, Py_ssize_t most, list due) except -1:
    """Move entries due by tick `target` to `due`, until `due` has `most` entries. Runs no Python code."""
    cdef Level* near = &wheel.levels[0]
    cdef int64_t tick
    cdef int slot
    if target < wheel.clock:
        target = wheel.clock
    while PyList_GET_SIZE(due) < most:
        if not near.occupied:
            if refill(wheel, target):
                continue
            wheel.clock = target
            break
        slot = lowest_bit(near.occupied)
        tick = (wheel.clock & ~wheel.mask) | slot
        if tick > target:
            wheel.clock = target
            break
        wheel.clock = tick
        hand_out_slot(wheel, slot, tick * wheel.tick, most, due)
    return 0


cdef int hand_out_slot(TimingWheel wheel, int slot, int64_t clock_ms, Py_ssize_t most, list due) except -1:
    """Move due entries of a slot of the lowest level to `due`, from the front, until `due` has `most` entries."""
    cdef Level* near = &wheel.levels[0]
    cdef Slot* ends = &near.slots[slot]
    cdef uint32_t at = ends.first, length = ends.length, moved = 0
    cdef Py_ssize_t before = PyList_GET_SIZE(due), given
    cdef PyObject* node
    try:
        while at < length and PyList_GET_SIZE(due) < most:
            node = ends.items[at]
            if node != NULL:
                if (<TimerTaskEntry>node).deadline <= clock_ms:
                    give(due, node)
                    soon_gone(node)
                    (<TimerTaskEntry>node).where.standing = RUNNING
                else:  # postponed by `touch`
                    link(wheel, node, tick_of(wheel, (<TimerTaskEntry>node).deadline))
                    moved += 1
            at += 1
    finally:
        # The numbers change once for all entries: once for each entry would double the cost of handing out.
        given = PyList_GET_SIZE(due) - before
        ends.first = at
        ends.live -= moved + <uint32_t>given
        near.count -= moved + given
        wheel.pending -= given
        wheel.relocations += moved
        if ends.live == 0:
            emptied(near, slot)
    return 0


cdef int64_t start_of(TimingWheel wheel, int level, int slot) noexcept:
    """The first tick of a slot that lies ahead of the clock."""
    cdef int above = (level + 1) * wheel.bits
    cdef int64_t block = 0 if above >= RANGE_BITS else (wheel.clock >> above) << above
    return block | (<int64_t>slot << (level * wheel.bits))


cdef int refill(TimingWheel wheel, int64_t target) except -1:
    """Empty the first far slot into the levels below it if it begins by `target`. Level 0 must be empty."""
    cdef int level, slot
    cdef int64_t start
    for level in range(1, wheel.used):
        if wheel.levels[level].occupied:
            slot = lowest_bit(wheel.levels[level].occupied)
            start = start_of(wheel, level, slot)
            if start > target:
                return False
            wheel.clock = start
            wheel.far_head = NULL
            cascade(wheel, level, slot)
            return True
    return False


cdef int cascade(TimingWheel wheel, int level, int slot) except -1:
    """Move all entries of a far slot to finer slots. The clock is at the start of that slot."""
    cdef Level* wheel_level = &wheel.levels[level]
    cdef Slot* ends = &wheel_level.slots[slot]
    cdef uint32_t at, moved = 0
    cdef PyObject* node
    try:
        for at in range(ends.first, ends.length):
            # Entries that have waited for long are in no cache, so fetch many of them at a time.
            if at + AHEAD < ends.length:
                prefetch(ends.items[at + AHEAD])
            node = ends.items[at]
            if node != NULL:
                link(wheel, node, tick_of(wheel, (<TimerTaskEntry>node).deadline))
                ends.items[at] = NULL
                moved += 1
    finally:
        ends.live -= moved
        wheel_level.count -= moved
        wheel.cascades += moved
        if ends.live == 0:
            emptied(wheel_level, slot)
    return 0


cdef int earliest(TimingWheel wheel, int level, int slot) except -1:
    """Find the earliest entry of a slot, and move postponed entries to their new slots.

    In a far level, the entry becomes `far_head`. Returns False when the slot has no entry left.
    """
    cdef int64_t last = start_of(wheel, level, slot) + (<int64_t>1 << (level * wheel.bits)) - 1
    cdef int64_t tick, first = last + 1
    cdef Level* wheel_level = &wheel.levels[level]
    cdef Slot* ends = &wheel_level.slots[slot]
    cdef uint32_t at, moved = 0
    cdef PyObject* node
    cdef PyObject* found = NULL
    try:
        for at in range(ends.first, ends.length):
            if at + AHEAD < ends.length:
                prefetch(ends.items[at + AHEAD])
            node = ends.items[at]
            if node == NULL:
                continue
            tick = tick_of(wheel, (<TimerTaskEntry>node).deadline)
            if tick > last:
                link(wheel, node, tick)
                ends.items[at] = NULL
                moved += 1
            elif tick < first:
                first = tick
                found = node
                if level == 0:
                    break
    finally:
        ends.live -= moved
        wheel_level.count -= moved
        wheel.relocations += moved
        if ends.live == 0:
            emptied(wheel_level, slot)
    if level:
        wheel.far_head = found
        wheel.far_tick = first
    return found != NULL


cdef int find_far_head(TimingWheel wheel) except -1:
    """Find the earliest entry of the far levels. Returns False when no entry waits there."""
    cdef int level
    for level in range(1, wheel.level_count):
        while wheel.levels[level].occupied:
            if earliest(wheel, level, lowest_bit(wheel.levels[level].occupied)):
                return True
    return False


cdef object clock_of(TimingWheel wheel):
    return wheel.clock if wheel.beyond_clock is None else wheel.beyond_clock


cdef object exact_tick(TimingWheel wheel, TimerTaskEntry entry):
    """`tick_of` for deadlines and clocks of any size."""
    return max(-(-entry.deadline_ms // wheel._tick_ms), clock_of(wheel))


cdef int hand_out_beyond(TimingWheel wheel, object target, Py_ssize_t most, list due) except -1:
    """Does what `hand_out` does for the entries in `beyond`. The slots are empty."""
    cdef TimerTaskEntry entry
    if wheel.beyond_clock is None:
        wheel.beyond_clock = wheel.clock
    target = max(target, wheel.beyond_clock)
    for entry in waiting(wheel):
        tick = exact_tick(wheel, entry)
        if entry.where.standing != PENDING or tick > target:  # a finalizer may have changed it after the list was made
            continue
        wheel.beyond_clock = tick
        due.append(entry)
        del wheel.beyond[entry]
        entry.where.standing = RUNNING
        if len(due) == most:
            return 0
    wheel.beyond_clock = target
    return 0


cdef list waiting(TimingWheel wheel):
    """All entries in the order in which they would be handed out. Walks the slots without running Python code."""
    cdef list entries = []
    cdef Slot* ends
    cdef int level, slot
    cdef uint32_t at
    for level in range(wheel.used):
        if wheel.levels[level].count:
            for slot in range(SLOTS):
                ends = &wheel.levels[level].slots[slot]
                for at in range(ends.first, ends.length):
                    if ends.items[at] != NULL:
                        PyList_Append(entries, <object>ends.items[at])
    entries += list(wheel.beyond)
    # A stable sort keeps the order of a slot. Entries that are due now compare equal, whatever their deadlines.
    entries.sort(key=lambda entry: exact_tick(wheel, entry))
    return entries


cdef traverseproc generated_traverse = NULL


cdef int traverse(PyObject* self, visitproc visit, void* arg) noexcept:
    """Show the garbage collector the references that the slots own."""
    cdef Level* levels = (<TimingWheel>self).levels
    cdef Slot* ends
    cdef int level, slot, answer
    cdef uint32_t at
    answer = generated_traverse(self, visit, arg)
    if answer or levels == NULL:
        return answer
    for level in range((<TimingWheel>self).used):
        if levels[level].count:
            for slot in range(SLOTS):
                ends = &levels[level].slots[slot]
                for at in range(ends.first, ends.length):
                    if ends.items[at] != NULL:
                        answer = visit(ends.items[at], arg)
                        if answer:
                            return answer
    return 0


cdef int clear_garbage(PyObject* self) noexcept:
    """Release the entries of all slots, one by one. The wheel is consistent whenever a task's finalizer runs."""
    cdef TimingWheel wheel = <TimingWheel>self
    cdef Level* levels = wheel.levels
    cdef Slot* ends
    cdef PyObject* node
    cdef int level
    for level in range(wheel.used):
        while levels != NULL and levels[level].occupied:
            ends = &levels[level].slots[lowest_bit(levels[level].occupied)]
            while ends.items[ends.first] == NULL:
                ends.first += 1
            node = ends.items[ends.first]
            unlink(wheel, node)
            wheel.pending -= 1
            (<TimerTaskEntry>node).where.standing = CANCELLED
            Py_DECREF(<object>node)
    if wheel.beyond is not None:
        wheel.beyond.clear()
    return 0
