// go-redis and rueidis, unmodified.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

func must(ok bool, what string) {
	if !ok {
		panic(what)
	}
}

func goRedis(ctx context.Context, r redis.UniversalClient, prefix string) {
	must(r.Ping(ctx).Err() == nil, "ping")
	must(r.Set(ctx, prefix+"a", "1", 0).Err() == nil, "set")
	must(r.IncrBy(ctx, prefix+"a", 41).Val() == 42, "incrby")
	must(errors.Is(r.Get(ctx, prefix+"none").Err(), redis.Nil), "nil")
	pipe := r.Pipeline()
	for n := range 200 {
		pipe.Set(ctx, fmt.Sprintf("%sp:%03d", prefix, n), n, 0)
	}
	_, err := pipe.Exec(ctx)
	must(err == nil, fmt.Sprint("pipeline: ", err))
	answers, err := r.TxPipelined(ctx, func(tx redis.Pipeliner) error {
		tx.Set(ctx, prefix+"b", "1", 0)
		tx.Incr(ctx, prefix+"b")
		return nil
	})
	must(err == nil && len(answers) == 2, fmt.Sprint("transaction: ", err))
	err = r.Watch(ctx, func(tx *redis.Tx) error {
		r.Set(ctx, prefix+"b", "9", 0)
		_, err := tx.TxPipelined(ctx, func(p redis.Pipeliner) error { return p.Set(ctx, prefix+"b", "7", 0).Err() })
		return err
	}, prefix+"b")
	must(errors.Is(err, redis.TxFailedErr), fmt.Sprint("watch: ", err))
	must(r.Set(ctx, prefix+"ttl", "x", 100*time.Second).Err() == nil, "set with a time to live")
	must(r.TTL(ctx, prefix+"ttl").Val() > 90*time.Second, "ttl")
	iter, found := r.Scan(ctx, 0, prefix+"p:*", 13).Iterator(), 0
	for iter.Next(ctx) {
		found++
	}
	must(iter.Err() == nil && found == 200, fmt.Sprint("scan: ", found, iter.Err()))
	err = r.LPush(ctx, prefix+"l", "x").Err()
	must(err != nil && strings.Contains(err.Error(), "LPUSH is not supported"), "refused by name")
}

func main() {
	ctx, address := context.Background(), os.Args[1]+":"+os.Args[2]
	for _, protocol := range []int{2, 3} {
		client := redis.NewClient(&redis.Options{Addr: address, Protocol: protocol, ClientName: "matrix"})
		goRedis(ctx, client, "go:")
		must(client.Close() == nil, "close")
	}
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{address}})
	goRedis(ctx, cluster, "go:c:")
	must(cluster.Close() == nil, "close")
	fmt.Println("go-redis ok")

	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{address}, DisableCache: true})
	must(err == nil, fmt.Sprint("rueidis: ", err))
	must(client.Do(ctx, client.B().Set().Key("ru:a").Value("1").Build()).Error() == nil, "set")
	value, err := client.Do(ctx, client.B().Get().Key("ru:a").Build()).ToString()
	must(err == nil && value == "1", fmt.Sprint("get: ", err))
	client.Close()
	fmt.Println("rueidis ok")
}
