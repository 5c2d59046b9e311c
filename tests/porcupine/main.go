// Judges the histories of histories.jsonl with porcupine, an independent checker of linearizability.
//
// Exit 0: all are linearizable, or as expected. 1: one is not. 6: one could not be decided in time.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

const (
	get = iota
	put
	insert
	del
	cas
	ranged
)

const none = -1

type step struct {
	Kind  int  `json:"kind"`
	Key   int  `json:"key"`
	Value int  `json:"value"`
	Old   int  `json:"old"`
	Seen  int  `json:"seen"`
	Done  bool `json:"done"`
}

type operation struct {
	Id       uint64   `json:"id"`
	Client   int      `json:"client"`
	Call     int64    `json:"call"`
	Return   int64    `json:"return"`
	Answered bool     `json:"answered"`
	Steps    []step   `json:"steps"`
	Low      int      `json:"low"`
	High     int      `json:"high"`
	Pairs    [][2]int `json:"pairs"`
}

type history struct {
	Name       string      `json:"name"`
	Expect     string      `json:"expect"`
	Keys       int         `json:"keys"`
	State      [][2]int    `json:"state"`
	Operations []operation `json:"operations"`
}

func run(state []int, op operation) (bool, []int) {
	copied := false
	set := func(key, value int) {
		if !copied {
			state, copied = slices.Clone(state), true
		}
		state[key] = value
	}
	for _, s := range op.Steps {
		if s.Kind == ranged {
			if op.Answered && !sameRange(state[op.Low:op.High], op.Low, op.Pairs) {
				return false, nil
			}
			continue
		}
		seen, done := state[s.Key], false
		switch {
		case s.Kind == put, s.Kind == insert && seen == none, s.Kind == cas && seen == s.Old:
			set(s.Key, s.Value)
			done = true
		case s.Kind == del && seen != none:
			set(s.Key, none)
			done = true
		}
		if op.Answered && (seen != s.Seen || done != s.Done) {
			return false, nil
		}
	}
	return true, state
}

func sameRange(state []int, low int, pairs [][2]int) bool {
	at := 0
	for i, value := range state {
		if value == none {
			continue
		}
		if at == len(pairs) || pairs[at] != [2]int{low + i, value} {
			return false
		}
		at++
	}
	return at == len(pairs)
}

func judge(h history, timeout time.Duration) porcupine.CheckResult {
	model := porcupine.Model{
		Init: func() any {
			state := slices.Repeat([]int{none}, h.Keys)
			for _, pair := range h.State {
				state[pair[0]] = pair[1]
			}
			return state
		},
		Step: func(state, input, _ any) (bool, any) {
			return run(state.([]int), input.(operation))
		},
		Equal: func(one, other any) bool { return slices.Equal(one.([]int), other.([]int)) },
	}
	var operations []porcupine.Operation
	for _, op := range h.Operations {
		operations = append(operations, porcupine.Operation{ClientId: op.Client, Input: op, Call: op.Call, Return: op.Return})
	}
	return porcupine.CheckOperationsTimeout(model, operations, timeout)
}

func main() {
	timeout := flag.Duration("timeout", 20*time.Second, "per history")
	flag.Parse()
	name := "histories.jsonl"
	if flag.NArg() > 0 {
		name = flag.Arg(0)
	}
	file, err := os.Open(name)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	lines := make(chan []byte)
	var lock sync.Mutex
	var workers sync.WaitGroup
	count, illegal, unknown, wrong := 0, 0, 0, 0
	for range runtime.NumCPU() {
		workers.Go(func() {
			for line := range lines {
				var h history
				if err := json.Unmarshal(line, &h); err != nil {
					fmt.Fprintln(os.Stderr, err)
					os.Exit(2)
				}
				result := judge(h, *timeout)
				lock.Lock()
				count++
				switch {
				case result == porcupine.Unknown:
					unknown++
					fmt.Printf("UNKNOWN  %s: %d operations\n", h.Name, len(h.Operations))
				case result == porcupine.Illegal:
					illegal++
				}
				expected := porcupine.Ok
				if h.Expect == "fail" {
					expected = porcupine.Illegal
				}
				if result != expected && result != porcupine.Unknown {
					wrong++
					fmt.Printf("FAIL     %s: %d operations: porcupine says %s, expected is %s\n", h.Name, len(h.Operations), result, expected)
				}
				lock.Unlock()
			}
		})
	}
	scanner := bufio.NewReaderSize(file, 1<<20)
	for {
		line, err := scanner.ReadBytes('\n')
		if len(line) > 1 {
			lines <- line
		}
		if err != nil {
			break
		}
	}
	close(lines)
	workers.Wait()
	fmt.Printf("%d histories: %d illegal, %d unknown, %d not as expected\n", count, illegal, unknown, wrong)
	switch {
	case wrong > 0:
		os.Exit(1)
	case unknown > 0:
		os.Exit(6)
	}
}
