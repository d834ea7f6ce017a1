// Package suite names what is tested, so that its module and those of its tests are pinned beside it.
package suite

import _ "github.com/IBM/sarama"
