package org.wheelsched.benchmark;

import io.netty.util.HashedWheelTimer;
import io.netty.util.TimerTask;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.util.Arrays;
import java.util.Random;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.common.utils.SystemTime;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.timer.SystemTimer;

/**
 * Nanoseconds of the calling thread's CPU to add a timer and, for Kafka, to expire it: one JSON object on stdout.
 *
 * Uniform delays of 1 ms to 1 h. Kafka's classes read the
 * real clock, which {@link SystemTime} sets forward; its reaper is this thread.
 */
public final class Timers {
  private static final int HOUR_MS = 3_600_000;
  private static final int ROUNDS = 9;
  private static final int WARM_UP = 4;
  private static final int STEPS = 1000;
  private static final ThreadMXBean CPU = ManagementFactory.getThreadMXBean();

  private static final class Task extends org.apache.kafka.server.util.timer.TimerTask {
    Task(long delayMs) {
      super(delayMs);
    }

    @Override
    public void run() {
      FIRED.incrementAndGet();
    }
  }

  private static final AtomicInteger FIRED = new AtomicInteger();

  private Timers() {}

  public static void main(String[] arguments) throws Exception {
    Time.SYSTEM.milliseconds(); // initializes the interface before the class that implements it, as Kafka does
    StringBuilder json = new StringBuilder("{");
    for (int count : new int[] {10_000, 100_000}) {
      double[] add = new double[ROUNDS];
      double[] expire = new double[ROUNDS];
      double[] netty = new double[ROUNDS];
      for (int round = -WARM_UP; round < ROUNDS; round++) {
        long[] delays = delays(count, round);
        double[] kafka = kafka(delays);
        double nettyAdd = netty(delays);
        if (round >= 0) {
          add[round] = kafka[0];
          expire[round] = kafka[1];
          netty[round] = nettyAdd;
        }
      }
      json.append(json.length() > 1 ? ", " : "")
          .append(
              String.format(
                  java.util.Locale.ROOT,
                  "\"%dk\": {\"kafka\": {\"add\": %.1f, \"expire\": %.1f}, \"netty\": {\"add\": %.1f}}",
                  count / 1000,
                  median(add),
                  median(expire),
                  median(netty)));
    }
    System.out.println(json.append("}"));
  }

  private static long[] delays(int count, long seed) {
    Random random = new Random(seed);
    long[] delays = new long[count];
    for (int n = 0; n < count; n++) {
      delays[n] = 1 + random.nextInt(HOUR_MS);
    }
    return delays;
  }

  private static double[] kafka(long[] delays) throws Exception {
    System.gc();
    FIRED.set(0);
    SystemTime.aheadMs = 0;
    SystemTimer timer = new SystemTimer("benchmark");
    long begun = CPU.getCurrentThreadCpuTime();
    for (long delay : delays) {
      timer.add(new Task(delay));
    }
    double add = CPU.getCurrentThreadCpuTime() - begun;
    begun = CPU.getCurrentThreadCpuTime();
    for (int step = 1; step <= STEPS; step++) {
      SystemTime.aheadMs = (long) HOUR_MS * step / STEPS;
      timer.advanceClock(0);
    }
    double expire = CPU.getCurrentThreadCpuTime() - begun;
    while (FIRED.get() < delays.length) {
      Thread.onSpinWait(); // its executor is behind; that is no part of this thread's time
    }
    timer.close();
    return new double[] {add / delays.length, expire / delays.length};
  }

  private static double netty(long[] delays) {
    System.gc();
    HashedWheelTimer timer = 
        new HashedWheelTimer(Executors.defaultThreadFactory(), 100, TimeUnit.MILLISECONDS, 512, false);
    timer.start();
    TimerTask task = timeout -> {};
    long begun = CPU.getCurrentThreadCpuTime();
    for (long delay : delays) {
      timer.newTimeout(task, delay + 60_000, TimeUnit.MILLISECONDS);
    }
    double add = CPU.getCurrentThreadCpuTime() - begun;
    timer.stop();
    return add / delays.length;
  }

  private static double median(double[] values) {
    double[] ordered = values.clone();
    Arrays.sort(ordered);
    return ordered[ordered.length / 2];
  }
}
