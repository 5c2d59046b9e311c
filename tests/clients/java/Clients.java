import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.ScanIterator;
import io.lettuce.core.cluster.RedisClusterClient;
import java.util.Set;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisCluster;
import redis.clients.jedis.JedisPooled;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.params.SetParams;

/** Jedis and Lettuce, unmodified. */
public final class Clients {
    private static void must(boolean ok, String what) {
        if (!ok) throw new AssertionError(what);
    }

    public static void main(String[] arguments) {
        String host = arguments[0];
        int port = Integer.parseInt(arguments[1]);
        jedis(host, port);
        lettuce(host, port);
    }

    private static void jedis(String host, int port) {
        try (Jedis jedis = new Jedis(host, port)) {
            must(jedis.set("je:a", "1").equals("OK") && jedis.incrBy("je:a", 41) == 42, "set, incrby");
            must(jedis.get("je:none") == null, "nil");
            var pipeline = jedis.pipelined();
            for (int n = 0; n < 200; n++) pipeline.set("je:p:" + n, "x");
            must(pipeline.syncAndReturnAll().size() == 200, "pipeline");
            var transaction = jedis.multi();
            transaction.set("je:b", "1");
            transaction.incr("je:b");
            must(transaction.exec().size() == 2, "transaction");
            jedis.set("je:ttl", "x", SetParams.setParams().ex(100));
            must(jedis.ttl("je:ttl") > 90, "ttl");
            try {
                jedis.lpush("je:l", "x");
                throw new AssertionError("a list");
            } catch (JedisDataException error) {
                must(error.getMessage().contains("LPUSH is not supported"), error.getMessage());
            }
        }
        try (JedisPooled pool = new JedisPooled(host, port)) {
            must(pool.get("je:a").equals("42"), "pool");
        }
        try (JedisCluster cluster = new JedisCluster(Set.of(new HostAndPort(host, port)))) {
            must(cluster.set("je:cluster", "1").equals("OK") && cluster.get("je:cluster").equals("1"), "cluster");
        }
        System.out.println("Jedis ok");
    }

    private static void lettuce(String host, int port) {
        RedisURI uri = RedisURI.builder().withHost(host).withPort(port).withClientName("matrix").build();
        try (RedisClient client = RedisClient.create(uri); var connection = client.connect()) {
            var commands = connection.sync();
            must(commands.set("le:a", "1").equals("OK") && commands.incrby("le:a", 41) == 42, "set, incrby");
            must(commands.get("le:none") == null, "nil");
            commands.multi();
            commands.set("le:b", "1");
            commands.incr("le:b");
            must(commands.exec().size() == 2, "transaction");
            commands.setex("le:ttl", 100, "x");
            must(commands.ttl("le:ttl") > 90, "ttl");
            must(ScanIterator.scan(commands).hasNext(), "scan");
        }
        try (RedisClusterClient client = RedisClusterClient.create(uri); var connection = client.connect()) {
            var commands = connection.sync();
            must(commands.set("le:cluster", "1").equals("OK") && commands.get("le:cluster").equals("1"), "cluster");
        }
        System.out.println("Lettuce ok");
    }
}
