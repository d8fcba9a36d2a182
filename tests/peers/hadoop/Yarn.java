import java.io.File;
import java.io.FileOutputStream;
import java.io.OutputStream;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

/** YARN with one node manager in this process, until its input ends; it writes how to reach it. */
public class Yarn {
  private static final int WAIT_MILLISECONDS = 600_000;

  public static void main(String[] arguments) throws Exception {
    File directory = new File(arguments[0]);
    System.setProperty("test.build.data", directory.getPath());
    YarnConfiguration settings = new YarnConfiguration();
    settings.set("fs.defaultFS", "file:///");
    settings.set("yarn.scheduler.capacity.root.queues", "default");
    settings.set("yarn.scheduler.capacity.root.default.capacity", "100");
    settings.set("yarn.scheduler.capacity.maximum-am-resource-percent", "1.0");
    settings.set("yarn.scheduler.minimum-allocation-mb", "256");
    settings.set("yarn.nodemanager.resource.memory-mb", "6144");
    settings.setBoolean("yarn.nodemanager.vmem-check-enabled", false);
    settings.setBoolean("yarn.nodemanager.pmem-check-enabled", false);
    settings.setBoolean("yarn.nodemanager.disk-health-checker.enable", false);
    MiniYARNCluster cluster = new MiniYARNCluster("waystation", 1, 1, 1);
    cluster.init(settings);
    cluster.start();
    if (!cluster.waitForNodeManagersToConnect(WAIT_MILLISECONDS)) {
      throw new IllegalStateException("no node manager");
    }
    File reached = new File(directory, "conf");
    reached.mkdirs();
    for (String name : new String[] {"core-site.xml", "yarn-site.xml"}) {
      try (OutputStream file = new FileOutputStream(new File(reached, name))) {
        cluster.getConfig().writeXml(file);
      }
    }
    System.out.println("ready " + reached.getPath());
    System.out.flush();
    while (System.in.read() >= 0) {}
    cluster.stop();
  }
}
