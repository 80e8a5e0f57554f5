package org.wheelsched.benchmark;

import io.netty.util.HashedWheelTimer;
import io.netty.util.TimerTask;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Locale;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.common.utils.SystemTime;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.timer.SystemTimer;

/**
 * Measures timers on the JVM, in nanoseconds of CPU for each timer. Each line on stdin names a file of delays (64-bit,
 * little-endian, ms). For each line the program runs one round and writes a line of JSON. Between rounds it waits.
 *
 * <p>"add" is SystemTimer.add, with the task that a user makes for it. An hour then passes in a thousand steps: "caller"
 * is the thread that calls advanceClock, and "executor" is Kafka's own thread, which runs the tasks. "clock" is one
 * reading of the clock, as add makes it. Kafka's classes read the real clock, and {@link SystemTime} sets it forward.
 * The caller does the work of Kafka's reaper.
 */
public final class Timers {
  private static final int HOUR_MS = 3_600_000;
  private static final int STEPS = 1000;
  private static final int READINGS = 200_000;
  private static final ThreadMXBean CPU = ManagementFactory.getThreadMXBean();
  private static final AtomicInteger FIRED = new AtomicInteger();

  private static final class Task extends org.apache.kafka.server.util.timer.TimerTask {
    Task(long delayMs) {
      super(delayMs);
    }

    @Override
    public void run() {
      FIRED.incrementAndGet();
    }
  }

  private static long blackHole;
  private static int round;

  private Timers() {}

  public static void main(String[] arguments) throws Exception {
    Time.SYSTEM.milliseconds(); // initializes the interface before the class that implements it, as Kafka does
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      long[] delays = delays(Path.of(line));
      double[] kafka = kafka(delays);
      System.out.printf(
          Locale.ROOT,
          "{\"add\": %.2f, \"caller\": %.2f, \"executor\": %.2f, \"clock\": %.2f, \"netty\": %.2f}%n",
          kafka[0],
          kafka[1],
          kafka[2],
          clock(),
          netty(delays));
      System.out.flush();
    }
  }

  private static long[] delays(Path file) throws Exception {
    ByteBuffer bytes = ByteBuffer.wrap(Files.readAllBytes(file)).order(ByteOrder.LITTLE_ENDIAN);
    long[] delays = new long[bytes.remaining() / Long.BYTES];
    bytes.asLongBuffer().get(delays);
    return delays;
  }

  private static double[] kafka(long[] delays) throws Exception {
    System.gc();
    FIRED.set(0);
    SystemTime.aheadMs = 0;
    String name = "benchmark-" + ++round;
    SystemTimer timer = new SystemTimer(name);
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
    double caller = CPU.getCurrentThreadCpuTime() - begun;
    while (FIRED.get() < delays.length) {
      Thread.sleep(1); // the timer's executor is behind: let it run
    }
    double executor = executorCpu(name);
    timer.close();
    return new double[] {add / delays.length, caller / delays.length, executor / delays.length};
  }

  /** CPU time of a timer's executor thread, which is as old as the timer. */
  private static long executorCpu(String timer) {
    for (Thread thread : Thread.getAllStackTraces().keySet()) {
      if (thread.getName().equals("executor-" + timer)) {
        return CPU.getThreadCpuTime(thread.getId());
      }
    }
    throw new IllegalStateException("Kafka's timer has no thread named executor-" + timer + " any more");
  }

  private static double clock() {
    long begun = CPU.getCurrentThreadCpuTime();
    long sum = 0;
    for (int reading = 0; reading < READINGS; reading++) {
      sum += Time.SYSTEM.hiResClockMs();
    }
    blackHole = sum;
    return (double) (CPU.getCurrentThreadCpuTime() - begun) / READINGS;
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
}
