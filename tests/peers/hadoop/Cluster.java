import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/** HDFS with one name node and one data node in this process, until its input ends. */
public class Cluster {
  public static void main(String[] arguments) throws Exception {
    Configuration settings = new Configuration();
    settings.set("hdfs.minidfs.basedir", arguments[0]);
    settings.set("dfs.permissions.enabled", "false");
    MiniDFSCluster cluster = new MiniDFSCluster.Builder(settings).numDataNodes(1).build();
    cluster.waitActive();
    System.out.println("ready " + cluster.getNameNodePort());
    System.out.flush();
    while (System.in.read() >= 0) {}
    cluster.shutdown();
  }
}
