"""Questions to a queue, worked by whom they fit, with answers to a temporary queue. Start a broker with queues first:

printf '[queues.questions]\\n' > ask.toml; mqmesh broker --config ask.toml --data ask --listen mqtt://127.0.0.1:1883
"""

import sys
import threading

from mqmesh.client import ConnectionFactory

URL = sys.argv[1] if len(sys.argv) > 1 else "mqtt://127.0.0.1:1883"
factory = ConnectionFactory(URL)
seated = threading.Semaphore(0)


def work(language: str) -> None:
    """Answer one question that fits."""
    with factory.create_context() as context:
        questions = context.create_consumer(context.create_queue("questions"), f"language = '{language}'")
        seated.release()
        question = questions.receive(timeout=60)
        context.create_producer().set_correlation_id(question.message_id).send(question.reply_to, f"{question.body} ({language})")


workers = [threading.Thread(target=work, args=(language,)) for language in ("en", "pt")]
for worker in workers:
    worker.start()
    seated.acquire()

with factory.create_context() as context:
    answers = context.create_temporary_queue()
    consumer = context.create_consumer(answers)
    producer = context.create_producer().set_reply_to(answers)
    producer.set_property("language", "pt").send(context.create_queue("questions"), "Quanto?")
    producer.set_property("language", "en").send(context.create_queue("questions"), "How much?")
    print(*sorted(consumer.receive(timeout=60).body for _ in workers), sep="\n")
for worker in workers:
    worker.join()
