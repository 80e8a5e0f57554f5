# The second half of _wheel_c.pyx: the lists, what waits beyond them, and what the garbage collector is shown.

cdef inline int64_t tick_of(TimingWheel wheel, int64_t deadline) noexcept:
    """The tick a deadline within range comes out at, never before the clock."""
    if wheel.tick != 1:
        deadline = (deadline - 1) // wheel.tick + 1 if deadline > 0 else 0
    return deadline if deadline > wheel.clock else wheel.clock


cdef inline bint in_range(TimingWheel wheel, int64_t deadline) noexcept:
    """Whether a deadline and the clock are for the lists."""
    return -RANGE_MS < deadline < wheel.range_ms and wheel.beyond_clock is None


cdef inline void link(TimingWheel wheel, PyObject* node, int64_t tick) noexcept:
    """Append an entry to the slot of `tick`, which is not before the clock. The caller has the list own it."""
    cdef uint64_t differing = <uint64_t>(tick ^ wheel.clock)
    cdef int level = wheel.level_of[highest_bit(differing)] if differing else 0
    cdef int slot = <int>((tick >> (level * wheel.bits)) & wheel.mask)
    cdef Level* home = &wheel.levels[level]
    cdef Slot* ends = &home.slots[slot]
    if level:
        if level >= wheel.used:
            wheel.used = level + 1
        if tick < wheel.far_tick and wheel.far_head != NULL:
            wheel.far_head = node
            wheel.far_tick = tick
    (<TimerTaskEntry>node).level = level
    (<TimerTaskEntry>node).slot = slot
    (<TimerTaskEntry>node).next = NULL
    (<TimerTaskEntry>node).prev = ends.tail
    if ends.tail == NULL:
        ends.head = node
        home.occupied |= (<uint64_t>1) << slot
    else:
        (<TimerTaskEntry>ends.tail).next = node
    ends.tail = node
    home.count += 1


cdef inline void unlink(TimingWheel wheel, PyObject* node) noexcept:
    """Take an entry from its list, whose reference passes to the caller."""
    cdef Level* home = &wheel.levels[(<TimerTaskEntry>node).level]
    cdef int slot = (<TimerTaskEntry>node).slot
    cdef Slot* ends = &home.slots[slot]
    cdef PyObject* next_node = (<TimerTaskEntry>node).next
    cdef PyObject* prev_node = (<TimerTaskEntry>node).prev
    if prev_node == NULL:
        ends.head = next_node
    else:
        (<TimerTaskEntry>prev_node).next = next_node
    if next_node == NULL:
        ends.tail = prev_node
    else:
        (<TimerTaskEntry>next_node).prev = prev_node
    if ends.head == NULL:
        home.occupied &= ~((<uint64_t>1) << slot)
    home.count -= 1
    if wheel.far_head == node:
        wheel.far_head = NULL


cdef inline int take_out(TimingWheel wheel, TimerTaskEntry entry) except -1:
    """Take a waiting entry, which the caller holds, from wherever it waits."""
    if entry.level == BEYOND:
        del wheel.beyond[entry]
    else:
        unlink(wheel, <PyObject*>entry)
        wheel.pending -= 1
        Py_DECREF(entry)
    return 0


cdef int put_in(TimingWheel wheel, TimerTaskEntry entry) except -1:
    """Have an entry wait where its deadline belongs."""
    entry.standing = PENDING
    if wheel.beyond_clock is not None or entry.deadline >= wheel.range_ms:
        entry.level = BEYOND
        wheel.beyond[entry] = None
    else:
        link(wheel, <PyObject*>entry, tick_of(wheel, entry.deadline))
        Py_INCREF(entry)
        wheel.pending += 1
    return 0


cdef int set_deadline(TimerTaskEntry entry, object deadline_ms, _Giant giant) except -1:
    """Write a deadline of any size down; `giant` is taken when the entry needs one."""
    cdef object task = entry.task
    cdef object old = entry._task  # let go of after the entry is whole again
    if -_RANGE_MS < deadline_ms < _RANGE_MS:
        entry.deadline = deadline_ms
        entry.giant = False
        entry._task = task
    else:
        giant.task = task
        giant.deadline_ms = deadline_ms
        entry.deadline = RANGE_MS if deadline_ms > 0 else -RANGE_MS
        entry._task = giant
        entry.giant = True
    return 0


cdef int hand_out(TimingWheel wheel, int64_t target, Py_ssize_t most, list due) except -1:
    """Move what is due by tick `target` to `due`, until that holds `most`. Runs no Python code."""
    cdef Level* near = &wheel.levels[0]
    cdef Slot* ends
    cdef PyObject* node
    cdef PyObject* following
    cdef int64_t tick, clock_ms
    cdef Py_ssize_t count = 0, left, moved
    cdef int slot, failed = 0
    if target < wheel.clock:
        target = wheel.clock
    while count < most:
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
        clock_ms = tick * wheel.tick
        ends = &near.slots[slot]
        node = ends.head
        left = count
        moved = 0
        while node != NULL and count < most:
            following = (<TimerTaskEntry>node).next
            if (<TimerTaskEntry>node).deadline <= clock_ms:
                failed = give(due, node)
                if failed:  # no memory: what is in `due` by now is lost to the caller, the rest waits
                    break
                (<TimerTaskEntry>node).standing = RUNNING
                count += 1
            else:  # touched, so it belongs to a later slot
                link(wheel, node, tick_of(wheel, (<TimerTaskEntry>node).deadline))
                moved += 1
            node = following
        # The slot lets go of its front in one step; taking out one by one would cost as much as all the rest.
        ends.head = node
        if node == NULL:
            ends.tail = NULL
            near.occupied &= ~((<uint64_t>1) << slot)
        else:
            (<TimerTaskEntry>node).prev = NULL
        left = count - left
        near.count -= left + moved
        wheel.pending -= left
        wheel.relocations += moved
        if failed:
            return -1
    return 0


cdef int64_t start_of(TimingWheel wheel, int level, int slot) noexcept:
    """The first tick of a slot that lies ahead of the clock."""
    cdef int above = (level + 1) * wheel.bits
    cdef int64_t block = 0 if above >= RANGE_BITS else (wheel.clock >> above) << above
    return block | (<int64_t>slot << (level * wheel.bits))


cdef bint refill(TimingWheel wheel, int64_t target) noexcept:
    """Empty the first far slot into the levels below it if it begins by `target`. Level 0 must be empty."""
    cdef int level, slot
    cdef int64_t start
    cdef Level* home
    cdef PyObject* node
    cdef PyObject* following
    cdef Py_ssize_t moved = 0
    for level in range(1, wheel.used):
        home = &wheel.levels[level]
        if home.occupied:
            slot = lowest_bit(home.occupied)
            start = start_of(wheel, level, slot)
            if start > target:
                return False
            wheel.clock = start
            wheel.far_head = NULL
            node = home.slots[slot].head
            home.slots[slot].head = home.slots[slot].tail = NULL
            home.occupied &= home.occupied - 1
            while node != NULL:
                following = (<TimerTaskEntry>node).next
                link(wheel, node, tick_of(wheel, (<TimerTaskEntry>node).deadline))
                moved += 1
                node = following
            home.count -= moved
            wheel.cascades += moved
            return True
    return False


cdef bint earliest(TimingWheel wheel, int level, int slot) noexcept:
    """Find the head of a slot, which becomes `far_head` of a far level; postponed entries move. False: none was left."""
    cdef int64_t last = start_of(wheel, level, slot) + (<int64_t>1 << (level * wheel.bits)) - 1
    cdef int64_t tick, first = last + 1
    cdef PyObject* node = wheel.levels[level].slots[slot].head
    cdef PyObject* following
    cdef PyObject* found = NULL
    while node != NULL and (level or found == NULL):
        following = (<TimerTaskEntry>node).next
        tick = tick_of(wheel, (<TimerTaskEntry>node).deadline)
        if tick > last:
            unlink(wheel, node)
            link(wheel, node, tick)
            wheel.relocations += 1
        elif tick < first:
            first = tick
            found = node
        node = following
    if level:
        wheel.far_head = found
        wheel.far_tick = first
    return found != NULL


cdef bint find_far_head(TimingWheel wheel) noexcept:
    """Find the earliest entry of the far levels; False: nothing waits there."""
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
    """`hand_out` for what waits in the dict; the lists are empty."""
    cdef TimerTaskEntry entry
    if wheel.beyond_clock is None:
        wheel.beyond_clock = wheel.clock
    target = max(target, wheel.beyond_clock)
    for entry in waiting(wheel):
        tick = exact_tick(wheel, entry)
        if entry.standing != PENDING or tick > target:  # the list may be older than what a finalizer did
            continue
        wheel.beyond_clock = tick
        due.append(entry)
        del wheel.beyond[entry]
        entry.standing = RUNNING
        if len(due) == most:
            return 0
    wheel.beyond_clock = target
    return 0


cdef list waiting(TimingWheel wheel):
    """All entries in the order they would be handed out. Walks the lists without running Python code."""
    cdef list entries = []
    cdef PyObject* node
    cdef int level, slot
    for level in range(wheel.used):
        if wheel.levels[level].count:
            for slot in range(SLOTS):
                node = wheel.levels[level].slots[slot].head
                while node != NULL:
                    PyList_Append(entries, <object>node)
                    node = (<TimerTaskEntry>node).next
    entries += list(wheel.beyond)
    # Stable: a slot keeps its order. What is due at once is equal, whatever its deadline was.
    entries.sort(key=lambda entry: exact_tick(wheel, entry))
    return entries


cdef traverseproc generated_traverse = NULL


cdef int traverse(PyObject* self, visitproc visit, void* arg) noexcept:
    """Show the collector what the lists own."""
    cdef Level* levels = (<TimingWheel>self).levels
    cdef PyObject* node
    cdef int level, slot, answer
    answer = generated_traverse(self, visit, arg)
    if answer or levels == NULL:
        return answer
    for level in range((<TimingWheel>self).used):
        if levels[level].count:
            for slot in range(SLOTS):
                node = levels[level].slots[slot].head
                while node != NULL:
                    answer = visit(node, arg)
                    if answer:
                        return answer
                    node = (<TimerTaskEntry>node).next
    return 0


cdef int clear_garbage(PyObject* self) noexcept:
    """Give up what the lists own, one by one, with the wheel whole whenever a task's finalizer runs."""
    cdef TimingWheel wheel = <TimingWheel>self
    cdef Level* levels = wheel.levels
    cdef PyObject* node
    cdef int level, slot
    for level in range(wheel.used):
        while levels != NULL and levels[level].occupied:
            node = levels[level].slots[lowest_bit(levels[level].occupied)].head
            unlink(wheel, node)
            wheel.pending -= 1
            (<TimerTaskEntry>node).standing = CANCELLED
            Py_DECREF(<object>node)
    if wheel.beyond is not None:
        wheel.beyond.clear()
    return 0
