package org.apache.kafka.common.utils;

import java.util.function.Supplier;

/** The real clock, which can be set forward. On the class path it comes before Kafka's own class of this name. */
public class SystemTime implements Time {
  public static volatile long aheadMs;
  private static final SystemTime SYSTEM_TIME = new SystemTime();

  public static SystemTime getSystemTime() {
    return SYSTEM_TIME;
  }

  @Override
  public long milliseconds() {
    return nanoseconds() / 1_000_000;
  }

  @Override
  public long nanoseconds() {
    return System.nanoTime() + aheadMs * 1_000_000;
  }

  @Override
  public void sleep(long ms) {
    throw new UnsupportedOperationException("nothing here sleeps");
  }

  @Override
  public void waitObject(Object lock, Supplier<Boolean> condition, long deadlineMs) {
    throw new UnsupportedOperationException("nothing here waits");
  }
}
